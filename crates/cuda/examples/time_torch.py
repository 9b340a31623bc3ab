"""PyTorch's figures for attention and the largest product of a 7B model, in the columns of `cargo xtask bench ops --tokens 32768 --seq 4096`,
to be run beside it on the same GPU."""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

B, S, H, KV, D = 8, 4096, 28, 4, 128


def median_us(run, repeats=21):
    for _ in range(3):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for event in events[:-1]:
        event.record()
        run()
    events[-1].record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:]))[repeats // 2]


def row(op, shape, us, flops):
    print(f"{op:<20} {shape:<46} {'':>13} {us:>11.1f} {flops / us / 1e6:>7.1f} TFLOP/s")


print("torch", torch.__version__, torch.cuda.get_device_name())
flops = 4 * H * D * B * S * (S + 1) / 2
q = torch.rand(B, H, S, D, device="cuda", dtype=torch.bfloat16).mul_(2).sub_(1).requires_grad_()
k, v = (torch.rand(B, KV, S, D, device="cuda", dtype=torch.bfloat16).mul_(2).sub_(1).requires_grad_() for _ in range(2))
dout = torch.randn_like(q)
for name, backend in [("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)]:
    try:
        with sdpa_kernel(backend):
            call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            with torch.no_grad():
                us = median_us(call)
            out = call()
            back = median_us(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
        row("attention", f"qkv [{B * S}, {(H + 2 * KV) * D}] bf16 ({name})", us, flops)
        row("attention_backward", f"dqkv [{B * S}, {(H + 2 * KV) * D}] bf16 ({name})", back, 2.5 * flops)
    except Exception as error:
        print("torch attention", name, "failed:", str(error)[:200])
x = torch.rand(32768, 3584, device="cuda", dtype=torch.bfloat16).sub_(0.5)
w = torch.rand(37888, 3584, device="cuda", dtype=torch.bfloat16).sub_(0.5)
us = median_us(lambda: x @ w.T)
row("matmul", "32768 x 37888 x 3584, b^T bf16", us, 2 * 32768 * 3584 * 37888)
