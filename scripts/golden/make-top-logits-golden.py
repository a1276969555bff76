#!/usr/bin/env python3
"""Writes tests/golden/distillation/top-logits.json: the first 20 losses of PyTorch for a student that learns from the k
largest logits of the teacher in that folder, with one bucket for all other tokens (the "ghost token" of
arXiv:2503.16870), on the data, the models and the settings of make-distillation-golden.py. All completions are one
batch."""
import importlib
import json
import sys

from golden_tools import GOLDEN, exact_rotary, run_with, transformers_in_float64

PACKAGES = ["transformers==5.24.0", "torch"]
FOLDER, STUDENT = GOLDEN / "distillation", GOLDEN / "trl"
RUNS = {
    "few": {"top_k": 3, "kd_ratio": 0.7, "temperature": 2.0},
    "one": {"top_k": 1, "kd_ratio": 1.0, "temperature": 1.0},
    "many": {"top_k": 200, "kd_ratio": 0.5, "temperature": 1.5},
}


def divergence(student, teacher, top_k, temperature):
    """Of each row: KL(teacher || student) over the teacher's k likeliest tokens and one bucket for the others."""
    import torch

    t = (teacher / temperature).softmax(-1)
    s = (student / temperature).softmax(-1)
    known = teacher.topk(top_k, -1).indices
    with_rest = lambda p: torch.cat([p.gather(-1, known), 1 - p.gather(-1, known).sum(-1, keepdim=True)], -1)  # noqa: E731
    t, s = with_rest(t), with_rest(s)
    return (t * (t.log() - s.log())).sum(-1)


def train(base, student, teacher, top_k, kd_ratio, temperature):
    import torch

    of = base.SETTINGS
    adamw = torch.optim.AdamW(student.parameters(), lr=of["lr"], betas=(of["beta1"], of["beta2"]), eps=of["eps"],
                              weight_decay=0.0)
    inputs, targets = base.batch()
    counted = targets >= 0
    with torch.no_grad():
        taught = teacher(input_ids=inputs).logits[counted]
    steps = []
    for _ in range(base.STEPS):
        logits = student(input_ids=inputs).logits[counted]
        ce = torch.nn.functional.cross_entropy(logits, targets[counted])
        kl = divergence(logits, taught, top_k, temperature).mean()
        loss = (1 - kd_ratio) * ce + kd_ratio * temperature**2 * kl
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), of["clip"])
        adamw.step()
        full = base.divergence(logits, taught, temperature).mean()
        steps.append({"loss": float(loss.detach()), "ce": float(ce.detach()), "kl": float(kl.detach()),
                      "full_kl": float(full.detach()), "grad_norm": float(norm)})
    return steps


def main():
    run_with(PACKAGES, __file__)
    import torch
    import transformers

    torch.set_num_threads(1)
    base = importlib.import_module("make-distillation-golden")
    result = {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}, "runs": {}}
    read = lambda folder: transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).double()  # noqa: E731
    teacher, students = read(FOLDER).eval(), {name: read(STUDENT) for name in RUNS}
    with transformers_in_float64() as real_float:
        exact_rotary(teacher.model.rotary_emb, real_float)
        for name, options in RUNS.items():
            exact_rotary(students[name].model.rotary_emb, real_float)
            steps = train(base, students[name], teacher, **options)
            result["runs"][name] = {"options": options, "steps": steps}
    (FOLDER / "top-logits.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
