#!/usr/bin/env python3
"""Parallel layouts of two ranks of one thread beside each other: ZB-H1 over 1F1B, tensor parallelism over one rank,
ZeRO-3 over ZeRO-1: tokens/s, alternating. Writes docs/measurements/compare-layouts_CPU_DATE.md.
Ten minutes on a quiet machine."""
# build: ltrain
import os
import sys
import tempfile

import measure

RECIPE = os.path.join(measure.REPOSITORY, "recipes", "gpt2-124m.yaml")

# name, goal, the layout measured, what it is measured against: ranks, micro-batches a step of each rank, overrides
PIPELINE = ["parallel.pipeline=2", "parallel.data=1"]
BYTES = ["model.vocab_size=320"]
PAIRS = [
    # The output layer of 50304 tokens costs as much as five layers, and its backward is one with its forward: it
    # leaves nothing to fill bubbles with. With a vocabulary of bytes stages are as the papers have them.
    ("pipeline: ZB-H1 over 1F1B, 4 micro-batches, byte vocabulary", 1.08,
     (2, 4, PIPELINE + BYTES + ["parallel.schedule=zb-h1"]), (2, 4, PIPELINE + BYTES + ["parallel.schedule=1f1b"])),
    ("pipeline: ZB-H1 over 1F1B, 4 micro-batches, vocabulary 50304", 1.08,
     (2, 4, PIPELINE + ["parallel.schedule=zb-h1"]), (2, 4, PIPELINE + ["parallel.schedule=1f1b"])),
    ("pipeline: what schedule auto takes over 1F1B, 4 micro-batches, vocabulary 50304", 1.08,
     (2, 4, PIPELINE + ["parallel.schedule=auto"]), (2, 4, PIPELINE + ["parallel.schedule=1f1b"])),
    ("tensor: two ranks over one rank", 1.6,
     (2, 1, ["parallel.tensor=2", "parallel.data=1"]), (1, 1, ["parallel.data=1"])),
    ("tensor with sequence: two ranks over one rank", 1.6,
     (2, 1, ["parallel.tensor=2", "parallel.sequence_parallel=true", "parallel.data=1"]), (1, 1, ["parallel.data=1"])),
    ("ZeRO-3 over ZeRO-1", 0.9,
     (2, 1, ["parallel.data=2", "parallel.zero_stage=3"]), (2, 1, ["parallel.data=2", "parallel.zero_stage=1"])),
]


def main():
    a = measure.options(__doc__, rounds=3, warmup=2, steps=4)
    a.add_argument("--precision", default="fp32")
    a.add_argument("--batch", type=int, default=2, help="sequences of a micro-batch")
    a.add_argument("--seq", type=int, default=256)
    a.add_argument("--only", default="", help="pairs whose name contains this")
    a.add_argument("--cores", default="0,1", help="the core of a single rank, and the other one")
    o = a.parse_args()
    cores = o.cores.split(",")
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        prefix = os.path.join(scratch, "tokens")
        measure.write_tokens(prefix, 16 * o.batch * o.seq + 1, 256)

        def tokens_per_second(ranks, micros, overrides):
            data = 2 if "parallel.data=2" in overrides else 1
            lines = measure.run_ltrain(o.binary, RECIPE, os.path.join(scratch, "run"), [
                f"data.train.0.path={prefix}", f"data.seq_length={o.seq}", f"train.micro_batch_size={o.batch}",
                f"train.global_batch_size={o.batch * micros * data}", f"train.train_steps={o.warmup + o.steps}",
                f"precision={o.precision}", "launch.threads_per_rank=1", *overrides, *measure.FEW_STEPS],
                environment={"OMP_NUM_THREADS": "1"}, taskset=cores[0] if ranks == 1 else ",".join(cores))
            return [line["tokens_per_sec"] for line in lines[o.warmup:]]

        for name, goal, layout, against in PAIRS:
            if o.only not in name:
                continue
            this, other = [], []
            for _ in range(o.rounds):
                this += tokens_per_second(*layout)
                other += tokens_per_second(*against)
            r = {"pair": name, "goal": goal, "this": measure.spread(this), "other": measure.spread(other)}
            r["ratio"] = r["this"]["median"] / r["other"]["median"]
            results.append(r)
            print(f"{name}: {r['ratio']:.3f} (goal {goal})", file=sys.stderr)
    rate = lambda s: f"{s['median']:.1f} ({s['min']:.1f} to {s['max']:.1f})"
    rows = [["layouts", "the first, tokens/s", "the second, tokens/s", "first ÷ second", "goal"]]
    rows += [[r["pair"], rate(r["this"]), rate(r["other"]), f"**{r['ratio']:.3f}**", str(r["goal"])] for r in results]
    measure.write_report(
        o.out, "compare-layouts", f"GPT-2 124M, {o.precision}: layouts of two ranks of one thread",
        [("scripts/compare.sh layouts " + " ".join(sys.argv[1:])).strip()],
        [("Layouts", rows, f"Micro-batches of {o.batch} x {o.seq} tokens. Median (smallest to largest) of {o.rounds} "
          f"alternating runs of {o.steps} steps after {o.warmup} of warm-up each.")], {"results": results})


main()
