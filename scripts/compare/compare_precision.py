#!/usr/bin/env python3
"""The loss of fp8 beside that of bf16 over 500 steps of a llama of 10 M parameters, and the speed of bf16 over fp32 on a
model of hidden size 512, alternating. Writes docs/measurements/compare-precision_CPU_DATE.md. The losses take
half an hour on two quiet cores, the speed five minutes; --only loss or --only speed makes one of them. --output-layer
adds fp8.output_layer to the losses, --seeds repeats them, and --small takes a model of 2.7 M parameters whose vocabulary
of 4096 tokens it learns from the text."""
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
        "tests", "scripts", "--exclude", "*.json", "*.jsonl"]
GOAL_LOSS, GOAL_SPEED, LAST = 0.01, 1.6, 20


# A llama of 10 M parameters, by what it differs in from the recipe of the quickstart.
MODEL = ["model.hidden_size=320", "model.intermediate_size=864", "model.num_hidden_layers=8", "model.num_attention_heads=5",
         "model.max_position_embeddings=256", "data.seq_length=256", "train.micro_batch_size=4", "train.global_batch_size=8",
         "optimizer.lr=1.5e-3", "optimizer.min_lr=1.5e-4", "schedule.lr_warmup_steps=20"]


# The small one: 1.9 M parameters in layers, 0.8 M in the embedding, which is the output layer's weight too.
SMALL = ["model.vocab_size=4096", "model.hidden_size=192", "model.intermediate_size=512", "model.num_hidden_layers=4",
         "model.num_attention_heads=3", "model.max_position_embeddings=256", "data.seq_length=256",
         "train.micro_batch_size=4", "train.global_batch_size=8", "optimizer.lr=3e-3", "optimizer.min_lr=3e-4",
         "schedule.lr_warmup_steps=20"]


def build_data(o, scratch):
    """Trains the tokenizer of the small model, builds the text's tokens; returns the overrides of model and data."""
    text, ltrain = os.path.join(scratch, "text"), lambda *a: subprocess.run(
        [o.binary, *a], cwd=measure.REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    tokenizer, model = ["--tokenizer", "byte"], MODEL
    if o.small:
        folder = os.path.join(scratch, "tokenizer")
        ltrain("tokenizer", "train", folder, "--input", *TEXT, "--vocab-size", "4096", "--quiet")
        tokenizer = ["--tokenizer", folder]
        model = [*SMALL, "data.tokenizer.kind=huggingface", f"data.tokenizer.path={folder}"]
    ltrain("data", "build", *tokenizer, "--split", "95,5", "--force", "--input", *TEXT, "--output", text)
    return [*model, f"data.train=[{{path: {text}-train}}]", f"data.eval=[{{path: {text}-val}}]"]


def variants(o):
    yield "bf16", ["precision=bf16"]
    for recipe in o.recipes:
        fp8 = ["precision=fp8", f"fp8.recipe={recipe}"]
        yield f"fp8, {recipe}", fp8
        if o.output_layer:
            yield f"fp8, {recipe}, with the output layer", [*fp8, "fp8.output_layer=true"]


def losses(o, scratch):
    """Mean training loss of the last steps and loss on held-out data, by precision and seed; rows and record."""
    data, found, mean = build_data(o, scratch), {}, lambda values: sum(values) / len(values)
    for seed in o.seeds:
        for name, overrides in variants(o):
            run_dir = os.path.join(scratch, "run")
            lines = measure.run_ltrain(o.binary, os.path.join(measure.REPOSITORY, "recipes", "quickstart.yaml"), run_dir,
                                       [*data, f"seed={seed}", f"train.train_steps={o.steps}",
                                        f"train.eval_interval={o.steps}", "checkpoint.save_interval=0",
                                        "checkpoint.save_at_end=false", "parallel.data=1", "parallel.zero_stage=0",
                                        f"launch.threads_per_rank={o.threads}", "train.eval_steps=16", *overrides])
            with open(os.path.join(run_dir, "metrics.jsonl")) as f:
                held_out = [line["eval_loss"] for line in map(json.loads, f) if "eval_loss" in line]
            found.setdefault(name, []).append({"seed": seed, "train": mean([line["lm_loss"] for line in lines][-LAST:]),
                                               "eval": held_out[-1], "steps": len(lines)})
            print(f"{name}: {found[name][-1]}", file=sys.stderr)
    rows = [["", f"training loss, mean of the last {LAST} steps", "over bf16", "held-out loss", "over bf16", "goal"]]
    for name, runs in found.items():
        def over(key):
            off = [f"{100 * (r[key] / b[key] - 1):+.2f} %" for r, b in zip(runs, found["bf16"])]
            return "" if name == "bf16" else ", ".join(off)
        rows.append([name, f"{mean([r['train'] for r in runs]):.4f}", over("train"), f"{mean([r['eval'] for r in runs]):.4f}",
                     over("eval"), "" if name == "bf16" else "within 1 %"])
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
    a.add_argument("--output-layer", action="store_true", help="of the losses: fp8.output_layer beside fp8 without it")
    a.add_argument("--seeds", nargs="*", type=int, default=[1234], help="of the losses")
    a.add_argument("--small", action="store_true", help="of the losses: the small model")
    a.add_argument("--threads", type=int, default=2, help="of the losses")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--few", type=int, default=5, help="steps of a timed run")
    o = a.parse_args()
    sections, record = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        if o.only != "speed":
            rows, record["losses"] = losses(o, scratch)
            model = ("2.7 M parameters (hidden 192, 4 layers, a vocabulary of 4096 that is 29 % of them)" if o.small
                     else "10 M parameters")
            sections.append(("Loss", rows, f"A llama of {model} on the text of recipes/quickstart.yaml, {o.steps} steps, "
                             f"one process, {o.threads} threads; the same data and schedule; seeds "
                             f"{', '.join(map(str, o.seeds))}, in this order behind each other; losses are their means."))
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
