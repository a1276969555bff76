#!/usr/bin/env python3
"""The loss of fp8 beside that of bf16 over 500 steps of a llama of 10 M parameters, and the speed of bf16 over fp32 on a
model of hidden size 512, alternating. Writes docs/measurements/compare-precision_CPU_DATE.md. The losses take
half an hour on two quiet cores, the speed five minutes; --only loss or --only speed makes one of them."""
# build: ltrain
import argparse
import json
import os
import subprocess
import sys
import tempfile

import measure

SPEED = """name: speed
model:
  architecture: llama
  vocab_size: 257
  hidden_size: 512
  intermediate_size: 1376
  num_hidden_layers: 6
  num_attention_heads: 8
  num_key_value_heads: 8
  max_position_embeddings: 512
optimizer: {{lr: 1.0e-3, min_lr: 1.0e-4}}
data: {{train: [{{path: {tokens}}}], tokenizer: {{kind: byte}}, seq_length: 512}}
train: {{micro_batch_size: 4, global_batch_size: 8}}
launch: {{threads_per_rank: 2}}
"""
TEXT = ["README.md", "docs", "app", "planner", "runtime", "models", "parallel", "kernels", "base",
        "tests", "scripts"]
GOAL_LOSS, GOAL_SPEED, LAST = 0.01, 1.6, 20


# A llama of 10 M parameters, by what it differs in from the recipe of the quickstart.
MODEL = ["model.hidden_size=320", "model.intermediate_size=864", "model.num_hidden_layers=8", "model.num_attention_heads=5",
         "model.max_position_embeddings=256", "data.seq_length=256", "train.micro_batch_size=4", "train.global_batch_size=8",
         "optimizer.lr=1.5e-3", "optimizer.min_lr=1.5e-4", "schedule.lr_warmup_steps=20"]


def losses(o, scratch):
    """Mean training loss of the last steps and loss on held-out data, by precision; rows and record."""
    text = os.path.join(scratch, "text")
    subprocess.run([o.binary, "data", "build", "--tokenizer", "byte", "--split", "95,5", "--force", "--input", *TEXT,
                    "--output", text], cwd=measure.REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for name, overrides in [("bf16", ["precision=bf16"]), *((f"fp8, {r}", ["precision=fp8", f"fp8.recipe={r}"])
                                                           for r in o.recipes)]:
        run_dir = os.path.join(scratch, "run")
        lines = measure.run_ltrain(o.binary, os.path.join(measure.REPOSITORY, "recipes", "quickstart.yaml"), run_dir,
                                   [*MODEL, f"train.train_steps={o.steps}", f"train.eval_interval={o.steps}",
                                    "checkpoint.save_interval=0", "checkpoint.save_at_end=false", "parallel.data=1",
                                    "parallel.zero_stage=0", "launch.threads_per_rank=2", "train.eval_steps=16",
                                    f"data.train=[{{path: {text}-train}}]", f"data.eval=[{{path: {text}-val}}]",
                                    *overrides])
        train = [line["lm_loss"] for line in lines][-LAST:]
        with open(os.path.join(run_dir, "metrics.jsonl")) as f:
            held_out = [line["eval_loss"] for line in map(json.loads, f) if "eval_loss" in line]
        found[name] = {"train": sum(train) / len(train), "eval": held_out[-1] if held_out else None,
                       "steps": len(lines)}
        print(f"{name}: {found[name]}", file=sys.stderr)
    base = found["bf16"]
    number = lambda v: "-" if v is None else f"{v:.4f}"
    rows = [["", f"training loss, mean of the last {LAST} steps", "over bf16", "held-out loss", "goal"]]
    for name, f in found.items():
        off = "" if name == "bf16" else f"{100 * (f['train'] / base['train'] - 1):+.2f} %"
        rows.append([name, number(f["train"]), off, number(f["eval"]), "" if name == "bf16" else "within 1 %"])
    return rows, found


def speeds(o, scratch):
    tokens = os.path.join(scratch, "tokens")
    measure.write_tokens(tokens, 64 * 512 + 1, 256)
    recipe = os.path.join(scratch, "speed.yaml")
    with open(recipe, "w") as out:
        out.write(SPEED.format(tokens=tokens))
    rates = {}
    kinds = [("fp32", "fp32", {}), ("bf16", "bf16", {}), ("fp8", "fp8", {})]
    with open("/proc/cpuinfo") as cpu:
        if " avx512_bf16" in cpu.read():
            kinds.append(("bf16, by its instructions", "bf16", {"LTRAIN_BF16_MATMUL": "pairs"}))
    for _ in range(o.rounds):
        for name, precision, environment in kinds:
            lines = measure.run_ltrain(o.binary, recipe, os.path.join(scratch, "run"),
                                       [f"train.train_steps={o.warmup + o.few}", f"precision={precision}",
                                        *measure.FEW_STEPS], environment)
            rates.setdefault(name, []).extend(line["tokens_per_sec"] for line in lines[o.warmup:])
    spread = {name: measure.spread(r) for name, r in rates.items()}
    rows = [["", "tokens/s, median (smallest to largest)", "over fp32", "goal"]]
    for name, s in spread.items():
        ratio = s["median"] / spread["fp32"]["median"]
        rows.append([name, f"{s['median']:.0f} ({s['min']:.0f} to {s['max']:.0f})", f"**{ratio:.3f}**",
                     str(GOAL_SPEED) if name == "bf16" else ""])
        print(f"{name}: {ratio:.3f} of fp32", file=sys.stderr)
    return rows, spread


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--only", choices=["loss", "speed"])
    a.add_argument("--steps", type=int, default=500, help="of the losses")
    a.add_argument("--recipes", nargs="*", default=["delayed"], help="of fp8")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--few", type=int, default=5, help="steps of a timed run")
    o = a.parse_args()
    sections, record = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        if o.only != "speed":
            rows, record["losses"] = losses(o, scratch)
            sections.append(("Loss", rows, f"A llama of 10 M parameters on the text of recipes/quickstart.yaml, {o.steps} steps, one process of two threads; the "
                             "same data, seed and schedule."))
        if o.only != "loss":
            rows, record["tokens_per_sec"] = speeds(o, scratch)
            sections.append(("Speed", rows, "Six layers of 512, feed-forward 1376, steps of 8 x 512 random tokens in "
                             f"micro-batches of 4, one process of two threads; {o.rounds} alternating runs of {o.few} "
                             f"steps after {o.warmup} of warm-up each. On the CPU fp8 is rounding beside bf16: it shows "
                             "numbers, and saves no time."))
    name = "compare-precision" + (f"-{o.only}" if o.only else "")
    measure.write_report(o.out, name, "fp8 against bf16 in loss, bf16 against fp32 in speed",
                         [("scripts/compare.sh precision " + " ".join(sys.argv[1:])).strip()], sections, record)


main()
