"""PyTorch's figures for the attention shape and the products of time_ops.rs, to be run beside it on the same GPU."""
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
        print(f"torch attention {name:<18}{us:>10.1f} us {flops / us / 1e6:>17.1f} TFLOP/s")
        print(f"torch attention backward {name:<9}{back:>10.1f} us {2.5 * flops / back / 1e6:>17.1f} TFLOP/s")
    except Exception as error:
        print("torch attention", name, "failed:", str(error)[:200])
x = torch.rand(32768, 3584, device="cuda", dtype=torch.bfloat16).sub_(0.5)
w = torch.rand(37888, 3584, device="cuda", dtype=torch.bfloat16).sub_(0.5)
us = median_us(lambda: x @ w.T)
print(f"torch matmul gate_up = x W^T      {us:>10.1f} us {2 * 32768 * 3584 * 37888 / us / 1e6:>17.1f} TFLOP/s")
