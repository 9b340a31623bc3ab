#!/usr/bin/env python3
"""Writes the goldens beside this file: tiny random models of every family, and what PyTorch and transformers compute with them.

    python3 -m venv V && V/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors
    V/bin/python tests/golden/make.py            # rewrites every family; the numbers of another CPU differ in the last bits

A folder per model:
    config.json          as transformers writes it
    model.safetensors    the initial weights, f32
    golden.safetensors   STEPS batches of T packed tokens and the results
        input_ids, targets   [STEPS, T] i32; targets are shifted (the token that follows, within the document) and -100 where there is none
        positions            [T] i32: position within the document
        cu_seqlens           [documents + 1] i32
        logits               [T, V]: of the first batch with the initial weights
        grad.NAME            gradients of the first batch, before clipping
        losses, grad_norms   [STEPS]: mean loss over the targets of the batch, global norm before clipping
        after.NAME           weights after STEPS steps of AdamW: lr 1e-3, betas 0.9 0.999, eps 1e-8, clip 1.0, weight decay 0.01 on
                             tensors of two dimensions only

Every document is computed by itself, in a batch of one with positions from 0, so a packed computation that lets documents see each
other, or that counts positions on, disagrees.
"""
import json, pathlib, torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

STEPS, DOCUMENTS = 10, [9, 1, 14]
COMMON = dict(num_hidden_layers=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
MODELS = {
    # Llama 3.1: scaled rope with a frequency in each of its three ranges, grouped queries, odd vocabulary, untied
    "llama3": dict(model_type="llama", hidden_size=16, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                   vocab_size=259, rms_norm_eps=1e-5, tie_word_embeddings=False,
                   rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=128)),
    # every bias that a llama can have, linear rope, one key head, head_dim 24, tied
    "llama_tied": dict(model_type="llama", hidden_size=24, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=24,
                       vocab_size=67, rms_norm_eps=1e-5, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                       rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    # as many key heads as query heads, a window that is longer than any document
    "mistral": dict(model_type="mistral", hidden_size=24, intermediate_size=56, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                    vocab_size=67, rms_norm_eps=1e-5, sliding_window=16, tie_word_embeddings=False),
    # biases on q, k and v, tied
    "qwen2": dict(model_type="qwen2", hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, vocab_size=101,
                  rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    # norms of the heads, heads * head_dim = 80 beside hidden 24, untied
    "qwen3": dict(model_type="qwen3", hidden_size=24, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=40,
                  vocab_size=59, rms_norm_eps=1e-6, tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
}


def document_loss(model, ids):
    """Logits [T, V], summed loss and its targets [T], documents apart."""
    logits, targets = [], []
    for document in ids.split(DOCUMENTS):
        n = len(document)
        logits.append(model(input_ids=document[None], position_ids=torch.arange(n)[None], use_cache=False).logits[0])
        shifted = torch.cat([document[1:], torch.tensor([-100])])
        shifted[: n // 4] = -100  # a prompt that is not trained on
        targets.append(shifted)
    logits, targets = torch.cat(logits), torch.cat(targets)
    return logits, targets, torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")


def make(name, settings, seed):
    torch.manual_seed(seed)
    settings = {**COMMON, **settings}
    config = AutoConfig.for_model(**settings)
    config.architectures = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").train()
    with torch.no_grad():  # larger than a real start, so that attention is not uniform and no gradient is tiny
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            else:
                parameter.normal_(0, 0.1)
        for key, parameter in model.named_parameters():
            if key.endswith("norm.weight"):
                parameter.add_(1.0)
    folder = pathlib.Path(__file__).parent / name
    folder.mkdir(exist_ok=True)
    weights = lambda: {k: p.detach().clone().contiguous() for k, p in model.named_parameters()}
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    decay, plain = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=0.01), dict(params=plain, weight_decay=0.0)], lr=1e-3)
    total = sum(DOCUMENTS)
    ids = torch.randint(0, config.vocab_size, (STEPS, total))
    out = dict(input_ids=ids.int(), positions=torch.cat([torch.arange(n) for n in DOCUMENTS]).int(),
               cu_seqlens=torch.tensor([0] + DOCUMENTS).cumsum(0).int())
    targets, losses, norms = [], [], []
    for step in range(STEPS):
        logits, step_targets, loss = document_loss(model, ids[step])
        loss = loss / (step_targets != -100).sum()
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().clone()
            out |= {f"grad.{k}": p.grad.clone() for k, p in model.named_parameters()}
        targets.append(step_targets)
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    out |= dict(targets=torch.stack(targets).int(), losses=torch.tensor(losses), grad_norms=torch.tensor(norms))
    out |= {f"after.{k}": p for k, p in weights().items()}
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "golden.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(json.dumps(dict(name=name, bytes=size, losses=[round(x, 4) for x in losses], grad_norms=[round(x, 4) for x in norms])))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, settings) in enumerate(MODELS.items()):
        make(name, settings, seed)
