#!/usr/bin/env python3
"""The peer: attention alone by PyTorch on one GPU. Prints one JSON object: seconds of forward and backward, by repeat."""
import argparse
import json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def main():
    a = argparse.ArgumentParser(description=__doc__)
    for name in ("batch", "heads", "seq", "dim"):
        a.add_argument(f"--{name}", type=int, required=True)
    a.add_argument("--attention", choices=["flash", "cudnn"], required=True)
    a.add_argument("--repeats", type=int, default=10)
    o = a.parse_args()
    backend = SDPBackend.FLASH_ATTENTION if o.attention == "flash" else SDPBackend.CUDNN_ATTENTION
    # The layout of a projection's output: heads next to each other in a row.
    rows = torch.randn(o.batch, o.seq, 3, o.heads, o.dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
    dout = torch.randn(o.batch, o.heads, o.seq, o.dim, device="cuda", dtype=torch.bfloat16)
    times = []
    with sdpa_kernel(backend):
        for i in range(3 + o.repeats):
            q, k, v = (rows[:, :, n].transpose(1, 2) for n in range(3))
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(out, (q, k, v), dout)
            marks[1].record()
            torch.cuda.synchronize()
            if i >= 3:
                times.append(marks[0].elapsed_time(marks[1]) / 1e3)
    print(json.dumps({"seconds": times, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}))


if __name__ == "__main__":
    main()
