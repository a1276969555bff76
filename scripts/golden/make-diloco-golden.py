#!/usr/bin/env python3
"""Writes tests/golden/diloco.txt and streaming_diloco.txt: the llama of make-golden.py trained by DiLoCo (arXiv:2311.08105)
and Streaming DiLoCo (arXiv:2501.18512) in double.

Two sites have two rows of each batch, or with shares of 3 and 1 three rows and one, and then the mean of changes is
weighted by the rows, as federated averaging (arXiv:1602.05629) weights by examples. They train 20 rounds of two inner steps with torch.optim.AdamW, or of four with
fragments, a delay and a merge; the outer optimizer is torch.optim.SGD on the parameters of the last round, whose gradient
is the mean over sites of what each parameter has lost. Fragments, delay and merge are those of torchft's local_sgd.py
(prepare_sync, perform_sync): the difference is taken `delay` steps before the outer step, and weights become
lerp(global, local, merge). Lines have the architecture, the way (nesterov, plain, shares, or fragments, delay and merge,
with shares or without), and the
losses of the first site, or for a tensor of the shared weights its length and its product with a fixed vector, as
hexadecimal doubles. tests/models/diloco_runs_test.cpp trains the same with ltrain. Needs PyTorch:

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

ROUNDS = 20
LR, OUTER_LR, OUTER_MOMENTUM = 1e-3, 0.7, 0.9


class Site:
    """A copy of the model with an inner optimizer of its own."""

    def __init__(self, job, first, rows):
        self.job, self.rows, self.count = job, slice(first, first + rows), rows
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


def place(name, job):
    """Number of a parameter among the layers: the embedding, the blocks, the final norm and the head."""
    if "layers." in name:
        return 1 + int(name.split("layers.")[1].split(".")[0])
    blocks = 1 + max(int(n.split("layers.")[1].split(".")[0]) for n in job.w if "layers." in n)
    return 0 if "embed_tokens" in name else blocks + 1


class Fragment:
    """Parameters that are synchronized together."""

    def __init__(self, sites, names, nesterov):
        self.sites = sites
        self.shared = {n: sites[0].job.w[n].clone().requires_grad_() for n in names}
        self.outer = torch.optim.SGD(self.shared.values(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=nesterov)

    def prepare(self):
        for n, t in self.shared.items():
            rows = sum(s.count for s in self.sites)
            t.grad = sum((t.detach() - s.p[n].detach()) * (s.count / rows) for s in self.sites)

    def perform(self, merge):
        self.outer.step()
        with torch.no_grad():
            for s in self.sites:
                for n, t in self.shared.items():
                    s.p[n].copy_(t.lerp(s.p[n], merge))


def diloco(job, nesterov, inner=2, fragments=1, delay=0, merge=0.0, rows=(2, 2)):
    sites = [Site(job, sum(rows[:i]), rows[i]) for i in range(len(rows))]
    parts = [Fragment(sites, [n for n in job.w if place(n, job) % fragments == i], nesterov) for i in range(fragments)]
    losses, each = [], inner // fragments
    for step in range(1, ROUNDS * inner + 1):
        losses.append([s.step((step - 1) % len(job.tokens)) for s in sites][0])
        if (step + delay) % each == 0:
            parts[((step + delay) // each - 1) % fragments].prepare()
        if step % each == 0:
            parts[(step // each - 1) % fragments].perform(merge)
    return losses, {n: t.detach() for part in parts for n, t in part.shared.items()}


def write(file, ways):
    with open(os.path.join(runs.GOLDEN, file), "w") as out:
        out.write(f"# PyTorch {torch.__version__.split('+')[0]}: scripts/golden/make-diloco-golden.py\n")
        for kind, settings in ways.items():
            losses, w = diloco(runs.Job("llama"), **settings)
            out.write(f"llama {kind} losses " + " ".join(x.hex() for x in losses) + "\n")
            for name, t in w.items():
                out.write(f"llama {kind} {name} " + " ".join(x.hex() for x in runs.describe(name, t)) + "\n")
            print(kind, losses[0], losses[-1])


def main():
    torch.set_num_threads(1)
    write("diloco.txt", {"nesterov": {"nesterov": True}, "plain": {"nesterov": False},
                         "shares": {"nesterov": True, "rows": (3, 1)},
                         "shares_2_1_0.5": {"nesterov": True, "rows": (3, 1), "inner": 4, "fragments": 2, "delay": 1,
                                            "merge": 0.5}})
    write("streaming_diloco.txt", {
        f"{f}_{d}_{m}": {"nesterov": True, "inner": 4, "fragments": f, "delay": d, "merge": m}
        for f, d, m in ((2, 0, 0.0), (1, 3, 0.0), (1, 0, 0.5), (2, 1, 0.5))})


if __name__ == "__main__":
    main()
