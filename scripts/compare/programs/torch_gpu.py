#!/usr/bin/env python3
"""The peer: training steps by PyTorch on one GPU, in one variant. Prints `first step` when that is done, and at the end
one JSON object. Used by scripts/compare.sh torch-gpu alone; random weights and tokens."""
import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_cases import CASES, idle_share, tokens_per_step


def rope_table(seq, dim, device):
    angle = torch.outer(torch.arange(seq, device=device).float(),
                        1.0 / 500000 ** (torch.arange(0, dim, 2, device=device).float() / dim))
    return angle.cos()[None, None], angle.sin()[None, None]


def rotate(x, table):
    cos, sin = (t.to(x.dtype) for t in table)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.llama = c, c["architecture"] == "llama"
        self.dim = c["hidden"] // c["heads"]
        bias = not self.llama
        norm = (lambda: nn.RMSNorm(c["hidden"], eps=1e-5)) if self.llama else (lambda: nn.LayerNorm(c["hidden"]))
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(c["hidden"], (c["heads"] + 2 * c["kv_heads"]) * self.dim, bias=bias)
        self.out = nn.Linear(c["heads"] * self.dim, c["hidden"], bias=bias)
        self.up = nn.Linear(c["hidden"], (2 if self.llama else 1) * c["ffn"], bias=bias)
        self.down = nn.Linear(c["ffn"], c["hidden"], bias=bias)

    def forward(self, x, table):
        c, (b, s, _) = self.c, x.shape
        q, k, v = self.qkv(self.norm1(x)).split([n * self.dim for n in (c["heads"], c["kv_heads"], c["kv_heads"])], -1)
        q, k, v = (t.view(b, s, -1, self.dim).transpose(1, 2) for t in (q, k, v))
        if self.llama:
            q, k = rotate(q, table), rotate(k, table)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["heads"] != c["kv_heads"])
        x = x + self.out(y.transpose(1, 2).reshape(b, s, -1))
        h = self.up(self.norm2(x))
        if self.llama:
            gate, up = h.chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(h, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, c, chunks):
        super().__init__()
        self.c, self.chunks = c, chunks
        self.tokens = nn.Embedding(c["vocab"], c["hidden"])
        self.positions = None if c["architecture"] == "llama" else nn.Embedding(c["seq"], c["hidden"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["hidden"], eps=1e-5) if self.positions is None else nn.LayerNorm(c["hidden"])
        self.head = nn.Linear(c["hidden"], c["vocab"], bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if c["tied"]:
            self.head.weight = self.tokens.weight

    def forward(self, tokens, targets, table):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, table)
        x, targets = self.norm(x).flatten(0, 1), targets.flatten()
        loss = lambda rows, wanted: F.cross_entropy(self.head(rows).float(), wanted, reduction="sum")
        if self.chunks == 1:
            return loss(x, targets)
        parts = zip(x.chunk(self.chunks), targets.chunk(self.chunks))
        return sum(torch.utils.checkpoint.checkpoint(loss, r, w, use_reentrant=False) for r, w in parts)


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--case", choices=CASES, required=True)
    a.add_argument("--mode", choices=["eager", "compiled", "graphs"], required=True)
    a.add_argument("--weights", choices=["autocast", "bf16"], required=True)
    a.add_argument("--attention", choices=["flash", "cudnn"], required=True)
    a.add_argument("--loss", choices=["plain", "chunked"], required=True)
    a.add_argument("--steps", type=int, default=10)
    a.add_argument("--warmup", type=int, default=3)
    a.add_argument("--idle", action="store_true", help="the share of the last step in which the GPU did nothing")
    o = a.parse_args()
    c = CASES[o.case]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    with device:
        model = Model(c, 8 if o.loss == "chunked" else 1)
    if o.weights == "bf16":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = model
    if o.mode != "eager":
        run = torch.compile(model, mode="reduce-overhead" if o.mode == "graphs" else None)
    table = rope_table(c["seq"], c["hidden"] // c["heads"], device)
    shape = (c["accumulation"], c["micro"], c["seq"])
    backend = SDPBackend.FLASH_ATTENTION if o.attention == "flash" else SDPBackend.CUDNN_ATTENTION
    scale = 1.0 / tokens_per_step(c)

    def step():
        tokens, targets = (torch.randint(50257, shape, device=device) for _ in range(2))
        total = 0
        for t, y in zip(tokens, targets):
            if o.mode == "graphs":
                torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast("cuda", torch.bfloat16, enabled=o.weights == "autocast"):
                loss = run(t, y, table) * scale
            loss.backward()
            total = total + loss.detach().clone()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=o.mode != "graphs")
        return total.item()

    rates, losses, idle = [], [], None
    with sdpa_kernel(backend):
        for i in range(o.warmup + o.steps):
            begin = time.perf_counter()
            losses.append(step())
            torch.cuda.synchronize()
            if i == 0:
                print("first step", flush=True)
            if i >= o.warmup:
                rates.append(tokens_per_step(c) / (time.perf_counter() - begin))
        if o.idle:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                step()
                torch.cuda.synchronize()
            idle = idle_share([(e.time_range.start, e.time_range.end) for e in profile.events()
                               if e.device_type == torch.autograd.DeviceType.CUDA])
    assert all(map(math.isfinite, losses)), losses
    print(json.dumps({"tokens_per_sec": rates, "losses": losses, "idle": idle, "torch": torch.__version__,
                      "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda,
                      "peak_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main()
