"""Writes optim.safetensors: ten steps of torch.optim.AdamW with torch's clipping, and transformers' schedules.

Run with PyTorch, transformers and safetensors: python generate.py
"""
import torch
from safetensors.torch import save_file
from transformers.optimization import (
    get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup, get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup, get_wsd_schedule)

torch.manual_seed(7)
out, STEPS = {}, 10
SHAPES = dict(a=(9, 7), b=(13,))  # a decays, b does not
start = {k: torch.randn(s) for k, s in SHAPES.items()}
grads = {k: torch.randn(STEPS, *s) * torch.logspace(-3, 1, STEPS).view(-1, *[1] * len(s)) for k, s in SHAPES.items()}
for k in SHAPES:
    out[f"start.{k}"], out[f"grads.{k}"] = start[k], grads[k]
for name, wd, clip in [("plain", 0.0, None), ("decay", 0.1, None), ("clip", 0.1, 1.0)]:
    p = {k: torch.nn.Parameter(start[k].clone()) for k in SHAPES}
    groups = [dict(params=[p["a"]], weight_decay=wd), dict(params=[p["b"]], weight_decay=0.0)]
    opt = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    norms = []
    for step in range(STEPS):
        for k in SHAPES:
            p[k].grad = grads[k][step].clone()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), clip if clip else float("inf")).detach())
        opt.step()
    for k in SHAPES:
        out[f"{name}.{k}"] = p[k].detach()
        out[f"{name}.{k}.m"], out[f"{name}.{k}.v"] = opt.state[p[k]]["exp_avg"], opt.state[p[k]]["exp_avg_sq"]
    out[f"{name}.norms"] = torch.stack(norms)


def factors(make):  # steps 0 to 49 of a run of 40
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(opt)
    values = []
    for _ in range(50):
        values.append(schedule.get_last_lr()[0])
        opt.step()
        schedule.step()
    return torch.tensor(values, dtype=torch.float64)


out["constant"] = factors(lambda o: get_constant_schedule_with_warmup(o, 5))
out["linear"] = factors(lambda o: get_linear_schedule_with_warmup(o, 5, 40))
# Beyond the end transformers' cosine rises again; ours keeps the last rate, so only the run itself is compared.
out["cosine"] = factors(lambda o: get_cosine_schedule_with_warmup(o, 5, 40))[:41].clone()
with_min = factors(lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, 5, 40, min_lr_rate=0.1))
out["cosine_min"] = with_min[:41].clone()
for curve in ("linear", "cosine", "1-sqrt"):
    out[f"wsd_{curve}"] = factors(lambda o: get_wsd_schedule(o, 5, 8, 40, decay_type=curve, min_lr_ratio=0.1))
save_file({k: v.contiguous() for k, v in out.items()}, "optim.safetensors")
