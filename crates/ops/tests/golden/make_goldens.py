"""Writes goldens.safetensors beside this file: inputs and PyTorch's outputs, in f32, for every op.

    python make_goldens.py        (PyTorch and transformers; the file in the repository came from 2.15.0 and 5.24.0)

Tensors are named CASE.OPERAND; an operand changed in place has CASE.OPERAND.in beside it. Scalars are in ../golden.rs.
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

torch.manual_seed(7)
torch.set_num_threads(1)
out = {}


def put(case, **tensors):
    for name, tensor in tensors.items():
        out[f"{case}.{name.replace('__', '.')}"] = tensor.detach().clone().contiguous()


def randn(*shape):
    return torch.randn(*shape)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


# add, bias
a, b = randn(3, 5), randn(3, 5)
put("add", a=a, b=b, out=a + b)
x, bias = randn(7, 11), randn(11)
put("bias_add", x__in=x, bias=bias, x=x + bias)
old, dy = randn(11), randn(7, 11)
b = torch.zeros(11, requires_grad=True)
(randn(7, 11) + b).backward(dy)
put("bias_grad", dy=dy, dbias__in=old, dbias=old + b.grad)

# cast: the values that bf16 rounding gives, held in f32
x = randn(33)
put("cast", x=x, y=x.bfloat16().float())

# gather_rows
x, index = randn(9, 5), torch.tensor([8, 0, 0, 3], dtype=torch.int32)
put("gather_rows", x=x, index=index, y=F.embedding(index.long(), x))

# matmul, as the three products of a linear layer, and both factors transposed
x, w, dy, old = leaf(6, 10), leaf(7, 10), randn(6, 7), randn(7, 10)
y = F.linear(x, w)
y.backward(dy)
put("matmul_forward", a=x, b=w, c=y)
put("matmul_input_gradient", a=dy, b=w, c=x.grad)
put("matmul_weight_gradient", a=dy, b=x, c__in=old, c=old + w.grad)
a, b = randn(10, 3), randn(4, 10)
put("matmul_both_transposed", a=a, b=b, c=a.T @ b.T)

# rms_norm
norm = LlamaRMSNorm(24, eps=1e-5)
norm.weight.data = randn(24)
x, dy, residual, old = leaf(5, 24), randn(5, 24), randn(5, 24), randn(24)
y = norm(x)
y.backward(dy)
rstd = torch.rsqrt(x.pow(2).mean(-1) + 1e-5)
put("rms_norm", x=x, weight=norm.weight, y=y, rstd=rstd)
put("rms_norm_backward", dy=dy, x=x, weight=norm.weight, rstd=rstd)
put("rms_norm_backward", dx__in=residual, dx=residual + x.grad, dweight__in=old, dweight=old + norm.weight.grad)

# qk_norm: heads 4, kv_heads 2, head_dim 8
qn, kn = LlamaRMSNorm(8, eps=1e-6), LlamaRMSNorm(8, eps=1e-6)
qn.weight.data, kn.weight.data = randn(8), randn(8)
qkv, dout = leaf(5, 64), randn(5, 64)
q, k, v = qkv.split([32, 16, 16], dim=1)
y = torch.cat([qn(q.view(5, 4, 8)).flatten(1), kn(k.view(5, 2, 8)).flatten(1), v], dim=1)
y.backward(dout)
put("qk_norm", qkv=qkv, q_weight=qn.weight, k_weight=kn.weight, out=y)
put("qk_norm_backward", dout=dout, qkv=qkv, q_weight=qn.weight, k_weight=kn.weight, dqkv=qkv.grad)
put("qk_norm_backward", dq_weight=qn.weight.grad, dk_weight=kn.weight.grad)

# rope: heads 3, kv_heads 1, head_dim 16, theta 10000; angles in f64, since f32 angles are not what the op promises
positions = torch.tensor([0, 1, 2, 3, 0, 1, 700], dtype=torch.int32)
inv_freq = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
angles = positions.double()[:, None] * torch.cat([inv_freq, inv_freq])
cos, sin = angles.cos().float()[None], angles.sin().float()[None]
qkv, dout = leaf(7, 80), randn(7, 80)
q, k, v = qkv.split([48, 16, 16], dim=1)
q, k = (t.view(1, 7, -1, 16).transpose(1, 2) for t in (q, k))
q, k = apply_rotary_pos_emb(q, k, cos, sin)
y = torch.cat([t[0].transpose(0, 1).flatten(1) for t in (q, k)] + [v], dim=1)
y.backward(dout)
put("rope", qkv__in=qkv, positions=positions, qkv=y)
put("rope_inverse", qkv__in=dout, positions=positions, qkv=qkv.grad)

# inverse frequencies, head_dim 64
for name, parameters in {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}.items():
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, max_position_embeddings=131072, rope_parameters=parameters
    )
    if name == "default":
        values = 1.0 / (500000.0 ** (torch.arange(0, 64, 2, dtype=torch.float) / 64))
    else:
        values, factor = ROPE_INIT_FUNCTIONS[name](config, "cpu")
        assert factor == 1.0
    out[f"inv_freq.{name}"] = values

# swiglu
gate_up, dout = leaf(5, 22), randn(5, 11)
gate, up = gate_up.chunk(2, dim=1)
y = F.silu(gate) * up
y.backward(dout)
put("swiglu", gate_up=gate_up, out=y)
put("swiglu_backward", dout=dout, gate_up__in=gate_up, gate_up=gate_up.grad)

# cross_entropy: the third row is ignored; inv_targets is 1 / 9
logits = (3 * randn(6, 37)).requires_grad_()
targets = torch.tensor([36, 0, -100, 5, 17, 5])
losses = F.cross_entropy(logits, targets, ignore_index=-100, reduction="none")
inv = torch.tensor([1.0 / 9.0])
(losses.sum() * inv).backward()
common = dict(logits=logits, targets=targets.int(), losses=losses)
put("cross_entropy", **common, inv_targets=inv, dlogits=logits.grad)
put("cross_entropy_loss", **common)

# attention: heads 6, kv_heads 2, head_dim 8, documents of 5, 1, 0 and 7 tokens
borders = torch.tensor([0, 5, 6, 6, 13], dtype=torch.int32)
document = torch.repeat_interleave(torch.arange(4), borders.diff())
mask = (document[:, None] == document[None, :]).tril()
qkv, dout = leaf(13, 80), randn(13, 48)
q, k, v = qkv.split([48, 16, 16], dim=1)
q, k, v = (t.view(13, -1, 8).transpose(0, 1) for t in (q, k, v))
scale = 8**-0.5
y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True)[0]
y = y.transpose(0, 1).flatten(1)
y.backward(dout)
scores = (q @ k.repeat_interleave(3, 0).transpose(1, 2)) * scale
lse = scores.masked_fill(~mask, float("-inf")).logsumexp(-1)
put("attention", qkv=qkv, cu_seqlens=borders, out=y, lse=lse)
put("attention_backward", dout=dout, out=y, qkv=qkv, lse=lse, cu_seqlens=borders, dqkv=qkv.grad)

save_file(out, pathlib.Path(__file__).with_name("goldens.safetensors"))
