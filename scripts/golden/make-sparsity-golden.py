#!/usr/bin/env python3
"""Writes tests/golden/sparsity: the first 20 losses in fp64 of PyTorch, with masks that move on the linear layers of
tests/golden/trl's Llama (straight-through gradients, decay of masked weights, dense tail: arXiv:2404.01847), on the
completions of make-distillation-golden.py; and blocks of 4 x 4 with the best of all transposable masks, which numpy finds
by trying them."""
import importlib.util
import itertools
import json
import sys

from golden_tools import GOLDEN, exact_rotary, run_with, transformers_in_float64

PACKAGES = ["transformers==5.24.0", "torch", "numpy"]
FOLDER, MODEL = GOLDEN / "sparsity", GOLDEN / "trl"
STEPS = 20
SETTINGS = {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "clip": 1.0}
RUNS = {
    "2:4": {"pattern": "2:4", "mask_interval": 3, "masked_decay": 0.01},
    "transposable, with a tail": {"pattern": "2:4", "transposable": True, "mask_interval": 4, "masked_decay": 0.05,
                                  "at_step": 3, "dense_tail": 0.2},
    "1:4 in each step, without decay": {"pattern": "1:4", "mask_interval": 1, "masked_decay": 0},
    "3:8": {"pattern": "3:8", "mask_interval": 5, "masked_decay": 0.02, "at_step": 2},
}


def transposable_masks():
    """All 4 x 4 masks with two ones in each row and column, by trying every choice of pairs."""
    import numpy as np

    pairs = [[i in p for i in range(4)] for p in itertools.combinations(range(4), 2)]
    masks = [np.array(rows, dtype=float) for rows in itertools.product(pairs, repeat=4)]
    return [m for m in masks if (m.sum(0) == 2).all()]


def mask_of(w, pattern, transposable=False):
    """The mask of a matrix; there are no ties."""
    import numpy as np
    import torch

    if transposable:
        blocks = w.detach().abs().unflatten(0, (-1, 4)).unflatten(2, (-1, 4)).permute(0, 2, 1, 3).numpy()
        masks = np.stack(transposable_masks())
        assert len(masks) == 90
        best = masks[np.einsum("rcij,mij->rcm", blocks, masks).argmax(-1)]
        return torch.from_numpy(best).permute(0, 2, 1, 3).reshape(w.shape)
    kept, group = map(int, pattern.split(":"))
    groups = w.detach().abs().unflatten(1, (-1, group))
    return torch.zeros_like(groups).scatter(-1, groups.topk(kept, -1).indices, 1.0).flatten(1)


def train(pattern, mask_interval, masked_decay, transposable=False, at_step=1, dense_tail=0.0):
    import torch
    from transformers import LlamaForCausalLM

    spec = importlib.util.spec_from_file_location("distillation", GOLDEN.parents[1] / "scripts/golden/make-distillation-golden.py")
    distillation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(distillation)

    torch.manual_seed(1)
    model = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float64)
    with transformers_in_float64() as real_float:
        exact_rotary(model.model.rotary_emb, real_float)
        return {"steps": train_model(model, distillation.batch(), pattern, mask_interval, masked_decay, transposable,
                                     at_step, dense_tail)}


def train_model(model, batch, pattern, mask_interval, masked_decay, transposable, at_step, dense_tail):
    import torch
    from torch.nn.utils import parametrize

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(_, w, mask):
            return w * mask

        @staticmethod
        def backward(_, grad):
            return grad, None

    class Masked(torch.nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.mask = torch.ones(shape, dtype=torch.float64)

        def forward(self, w):
            return Straight.apply(w, self.mask)

    inputs, targets = batch
    counted = targets >= 0
    masked = []
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            parametrize.register_parametrization(module, "weight", Masked(module.weight.shape))
            masked.append((module.parametrizations.weight[0], module.parametrizations.weight.original))
    adamw = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                              eps=SETTINGS["eps"], weight_decay=0.0)
    last = STEPS - round(dense_tail * STEPS)
    steps = []
    for step in range(1, STEPS + 1):
        entry = {}
        if at_step <= step <= last and (step - at_step) % mask_interval == 0:
            flips = total = 0
            for m, w in masked:
                mask = mask_of(w, pattern, transposable)
                if step > at_step:
                    flips += float((mask != m.mask).sum())
                total += mask.numel()
                m.mask = mask
            entry["mask_flip_rate"] = flips / total
        if step == last + 1:
            for m, _ in masked:
                m.mask = torch.ones_like(m.mask)
        loss = torch.nn.functional.cross_entropy(model(input_ids=inputs).logits[counted], targets[counted])
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS["clip"])
        if at_step <= step <= last:
            for m, w in masked:
                w.grad.add_(masked_decay * (1 - m.mask) * w.detach())
        adamw.step()
        steps.append({"loss": float(loss.detach()), "grad_norm": float(norm), **entry})
    return steps


def blocks():
    import numpy as np

    random = np.random.default_rng(3)
    rows = []
    for i in range(200):
        w = random.standard_normal((4, 4)) * (10.0 ** random.integers(-2, 3) if i % 2 else 1.0)
        w[np.abs(w) < 0.2 * (i % 3)] = 0
        masks = transposable_masks()
        sums = sorted(((np.abs(w) * m).sum(), k) for k, m in enumerate(masks))
        if sums[-1][0] - sums[-2][0] < 1e-9:
            continue  # a tie
        rows.append({"w": w.flatten().tolist(), "mask": masks[sums[-1][1]].astype(int).flatten().tolist()})
    return rows


def main():
    run_with(PACKAGES, __file__)
    import torch
    import transformers

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "blocks.json").write_text("[\n" + ",\n".join(json.dumps(b) for b in blocks()) + "\n]\n")
    result = {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}, "settings": SETTINGS,
              "runs": {name: {"options": options, **train(**options)} for name, options in RUNS.items()}}
    (FOLDER / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
