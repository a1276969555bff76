#!/usr/bin/env python3
"""Writes tests/golden/diloco.txt: the llama of make-golden.py trained by DiLoCo (arXiv:2311.08105) in double.

Two sites have two rows of each batch. They train 20 rounds of two inner steps with torch.optim.AdamW; the outer optimizer
is torch.optim.SGD on the parameters of the last round, whose gradient is the mean over sites of what each parameter has
lost. Lines have the architecture, the outer momentum (nesterov or plain), and the losses of the first site, or for a
tensor its length and its product with a fixed vector, as hexadecimal doubles. tests/models/optimizer_runs_test.cpp
trains the same with ltrain. Needs PyTorch:

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/python scripts/golden/make-diloco-golden.py
"""
import importlib.util
import os

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("runs", os.path.join(HERE, "make-optimizer-runs.py"))
runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runs)

SITES, ROUNDS, INNER, ROWS = 2, 20, 2, 2
LR, OUTER_LR, OUTER_MOMENTUM = 1e-3, 0.7, 0.9


class Site:
    """A copy of the model with an inner optimizer of its own."""

    def __init__(self, job, number):
        self.job, self.rows = job, slice(number * ROWS, (number + 1) * ROWS)
        self.p = {n: t.clone().requires_grad_() for n, t in job.w.items()}
        matrices = [t for t in self.p.values() if t.dim() == 2]
        vectors = [t for t in self.p.values() if t.dim() == 1]
        self.inner = torch.optim.AdamW([{"params": matrices, "weight_decay": runs.DECAY},
                                        {"params": vectors, "weight_decay": 0.0}],
                                       lr=LR, betas=(runs.B1, runs.B2), eps=runs.EPS)

    def step(self, batch):
        """The mean loss over the site's own tokens, and an update."""
        logits = self.job.forward(self.job.c, self.p, self.job.tokens[batch][self.rows])
        loss = F.cross_entropy(logits.flatten(0, 1), self.job.targets[batch][self.rows].flatten(), ignore_index=-1)
        self.inner.zero_grad()
        loss.backward()
        self.inner.step()
        return loss.item()


def diloco(job, nesterov):
    sites = [Site(job, i) for i in range(SITES)]
    shared = {n: t.clone().requires_grad_() for n, t in job.w.items()}
    outer = torch.optim.SGD(shared.values(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=nesterov)
    losses = []
    for step in range(ROUNDS * INNER):
        losses.append([s.step(step % len(job.tokens)) for s in sites][0])
        if (step + 1) % INNER:
            continue
        for n, t in shared.items():
            t.grad = torch.stack([t.detach() - s.p[n].detach() for s in sites]).mean(0)
        outer.step()
        with torch.no_grad():
            for s in sites:
                for n, t in s.p.items():
                    t.copy_(shared[n])
    return losses, {n: t.detach() for n, t in shared.items()}


def main():
    torch.set_num_threads(1)
    with open(os.path.join(runs.GOLDEN, "diloco.txt"), "w") as out:
        out.write(f"# PyTorch {torch.__version__.split('+')[0]}: scripts/golden/make-diloco-golden.py\n")
        for kind in ("nesterov", "plain"):
            losses, w = diloco(runs.Job("llama"), kind == "nesterov")
            out.write(f"llama {kind} losses " + " ".join(x.hex() for x in losses) + "\n")
            for name, t in w.items():
                out.write(f"llama {kind} {name} " + " ".join(x.hex() for x in runs.describe(name, t)) + "\n")
            print(kind, losses[0], losses[-1])


if __name__ == "__main__":
    main()
