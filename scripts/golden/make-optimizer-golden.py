#!/usr/bin/env python3
"""Writes tests/golden/torch_optimizers.txt: a matrix and a vector after 20 steps of PyTorch's optimizers, in double.

Values and gradients are functions of the element and the step, which tests/models/optimizer_golden_test.cpp computes
too. Needs PyTorch 2.9 or newer (Muon); the tests do not.
"""
import math
import os

import torch

ROWS, COLS, STEPS = 12, 8, 20


def value(i):
    return math.sin(1.0 + i)


def gradient(i, step):
    return math.cos(0.7 * i + 1.3 * step) * 10.0 ** (i % 3 - 1)


def train(make, scheduled=True):
    matrix = torch.tensor([[value(r * COLS + c) for c in range(COLS)] for r in range(ROWS)], dtype=torch.float64)
    vector = torch.tensor([value(100 + i) for i in range(COLS)], dtype=torch.float64)
    params = [torch.nn.Parameter(matrix), torch.nn.Parameter(vector)]
    optimizer = make(params)
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / step
        n = 0
        for p in optimizer.param_groups[0]["params"]:
            first = 0 if p.dim() == 2 else 100
            p.grad = torch.tensor([gradient(first + i, step) for i in range(p.numel())],
                                  dtype=torch.float64).reshape(p.shape)
        optimizer.step()
    return [x for p in params for x in p.detach().reshape(-1).tolist()]


def main():
    # Muon computes in bf16; here in double, so that the formula is what is compared.
    torch.bfloat16 = torch.float64
    decay = dict(lr=0.02, weight_decay=0.1)
    makers = {
        "adamw": lambda p: torch.optim.AdamW(p, betas=(0.9, 0.95), eps=1e-8, **decay),
        "adam": lambda p: torch.optim.Adam(p, betas=(0.9, 0.95), eps=1e-8, **decay),
        "sgd": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True, **decay),
        "adafactor": lambda p: torch.optim.Adafactor(p, **decay),
        "muon": lambda p: torch.optim.Muon(p[:1], momentum=0.95, **decay),
    }
    path = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden", "torch_optimizers.txt")
    with open(path, "w") as out:
        out.write(f"# PyTorch {torch.__version__.split('+')[0]}: scripts/golden/make-optimizer-golden.py\n")
        for name, make in makers.items():
            out.write(name + " " + " ".join(x.hex() for x in train(make)) + "\n")


main()
