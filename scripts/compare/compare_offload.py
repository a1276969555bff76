#!/usr/bin/env python3
"""Optimizer states, weights and activations in files beside resident ones: tokens/s, alternating; arena and losses
(exact, or this fails), resident memory. Writes docs/measurements/compare-offload_CPU_DATE.md.
Ten minutes on a quiet machine."""
# build: ltrain
import json
import os
import sys
import tempfile

import measure

RECIPE = os.path.join(measure.REPOSITORY, "recipes", "gpt2-124m.yaml")
MODEL = ["model.hidden_size=512", "model.num_hidden_layers=8", "model.num_attention_heads=8", "model.vocab_size=8192"]


def away(section):
    return [f"offload.{section}.device=nvme", f"offload.{section}.path=FOLDER"]


# name, goal, micro-batches a step, what both have, what the first has
PAIRS = [
    ("optimizer states", 0.85, 16, [], away("optimizer")),
    ("weights, ZeRO-3 on one rank", None, 16, ["parallel.zero_stage=3"], away("params")),
    ("activations", None, 16, [], away("activations")),
    ("inputs of layers, recomputed", None, 16, ["recompute.granularity=full"], away("activations")),
    ("states, weights and activations", None, 16, ["parallel.zero_stage=3"],
     away("optimizer") + away("params") + away("activations")),
]


def main():
    a = measure.options(__doc__, rounds=3, warmup=1, steps=2)
    a.add_argument("--folder", help="that takes the files; default: a temporary one")
    a.add_argument("--precision", default="fp32")
    a.add_argument("--batch", type=int, default=2, help="sequences of a micro-batch")
    a.add_argument("--seq", type=int, default=256)
    a.add_argument("--only", default="", help="pairs whose name contains this")
    o = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=o.folder) as scratch:
        prefix, run_dir = os.path.join(scratch, "tokens"), os.path.join(scratch, "run")
        measure.write_tokens(prefix, 64 * o.batch * o.seq + 1, 8192)

        def run(micros, overrides):
            lines = measure.run_ltrain(o.binary, RECIPE, run_dir, [
                f"data.train.0.path={prefix}", f"data.seq_length={o.seq}", f"train.micro_batch_size={o.batch}",
                f"train.global_batch_size={o.batch * micros}", f"train.train_steps={o.warmup + o.steps}",
                f"precision={o.precision}", "parallel.data=1", *MODEL, *measure.FEW_STEPS,
                *(x.replace("FOLDER", scratch) for x in overrides)])
            with open(os.path.join(run_dir, "plan.json")) as f:
                plan = json.load(f)
            usage = measure.rank_usage(run_dir)[0]
            return {"tokens_per_sec": [line["tokens_per_sec"] for line in lines[o.warmup:]],
                    "losses": [line["lm_loss"] for line in lines], "arena": usage["arena_bytes"],
                    "plan_arena": usage["plan_arena_bytes"], "rss": usage["peak_rss_bytes"],
                    "plan_rss": usage["plan_total_bytes"],
                    "away": plan["ranks"][0]["memory_bytes"].get("offloaded", 0),
                    "plan_tokens_per_sec": plan["tokens_per_second"]}

        for name, goal, micros, both, first in PAIRS:
            if o.only not in name:
                continue
            this, other = [], []
            for _ in range(o.rounds):
                this.append(run(micros, both + first))
                other.append(run(micros, both))
            rate = lambda runs: measure.spread([v for r in runs for v in r["tokens_per_sec"]])
            r = {"pair": name, "goal": goal, "this": rate(this), "other": rate(other), "runs": [this, other]}
            r["ratio"] = r["this"]["median"] / r["other"]["median"]
            r["same"] = all(x["losses"] == this[0]["losses"] for x in this + other)
            r["exact"] = all(x["arena"] == x["plan_arena"] for x in this + other)
            results.append(r)
            print(f"{name}: {r['ratio']:.3f} (goal {goal})", file=sys.stderr)
    rate = lambda s: f"{s['median']:.0f} ({s['min']:.0f} to {s['max']:.0f})"
    mib = lambda n: f"{n / 2**20:.1f}"
    rows = [["what is away", "away, tokens/s", "resident, tokens/s", "away ÷ resident", "goal", "same losses"]]
    memory = [["what is away", "arena, MiB", "resident arena, MiB", "arena as planned", "away, MiB", "peak RSS, MiB",
               "planned, MiB", "off"]]
    for r in results:
        one, base = r["runs"][0][-1], r["runs"][1][-1]
        rows.append([r["pair"], rate(r["this"]), rate(r["other"]), f"**{r['ratio']:.3f}**", str(r["goal"] or ""),
                     "to the bit" if r["same"] else "NO"])
        memory.append([r["pair"], mib(one["arena"]), mib(base["arena"]), "to the byte" if r["exact"] else "NO",
                       mib(one["away"]), mib(one["rss"]), mib(one["plan_rss"]),
                       f"{100 * (one['plan_rss'] / one['rss'] - 1):+.1f} %"])
    measure.write_report(
        o.out, "compare-offload", f"GPT-2 of 30 M parameters, {o.precision}, one rank: what lies in files",
        [("scripts/compare.sh offload " + " ".join(sys.argv[1:])).strip()],
        [("Speed", rows, f"Micro-batches of {o.batch} x {o.seq} tokens, 16 a step. Median (smallest to largest) of "
          f"{o.rounds} alternating runs of {o.steps} steps after {o.warmup} of warm-up each."),
         ("Memory", memory, "Planned less measured, of the last run.")], {"results": results})
    if not all(r["same"] and r["exact"] for r in results):
        sys.exit("losses or arena bytes differ")


main()
