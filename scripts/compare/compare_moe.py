#!/usr/bin/env python3
"""An MoE model of 8 experts, 2 a token, at even routing and as its router learns, beside a dense model with the same
active operations: tokens/s, alternating, and the part of the step that the router and moving rows take. Writes
docs/measurements/compare-moe_CPU_DATE.md. Seven minutes on a quiet machine."""
# build: ltrain
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import measure

RECIPE = """name: {name}
model:
  architecture: llama
  vocab_size: 257
  hidden_size: 512
  num_hidden_layers: 6
  num_attention_heads: 8
  num_key_value_heads: 8
  max_position_embeddings: 1024
  intermediate_size: 2048
  {moe}
optimizer: {{lr: 1.0e-3, min_lr: 1.0e-4}}
data: {{train: [{{path: {tokens}}}], tokenizer: {{kind: byte}}, seq_length: 512}}
train: {{micro_batch_size: 4, global_batch_size: {batch}}}
"""
MOE = "moe: {{num_experts: 8, top_k: 2, intermediate_size: 1024, {}}}"
# With expert choice every expert has an even share of each micro-batch. A router that begins to learn from random
# tokens is far from even, and the ranks wait for the one that has most rows.
MODELS = {"dense": "", "even": MOE.format("router: {selection: expert_choice}"),
          "learned": MOE.format("balance: {kind: switch, coeff: 0.01}")}
ROUTINGS = {"even": "even, by expert choice", "learned": "as the router learns"}
# Ops that choose and move rows. The gate's matmul has 8 columns: 0.1 % of a layer's matmuls.
ROUTER = re.compile(r"route_|permute_rows|combine_rows|sort_choices|balance_loss|z_loss|router")

# name, goal, ranks of experts, overrides of both, of the MoE model alone
PAIRS = [
    ("one process of two threads", 0.95, 1, ["launch.threads_per_rank=2"], []),
    ("two processes: experts over both, against data parallel", 0.92, 2,
     ["parallel.data=2", "launch.threads_per_rank=1"], ["parallel.expert=2"]),
]


def router_share(binary, recipe, run_dir, overrides):
    """Of the samples of a run; null without perf."""
    if not shutil.which("perf"):
        return None
    data = os.path.join(os.path.dirname(run_dir), "perf.data")
    shutil.rmtree(run_dir, ignore_errors=True)
    recorded = subprocess.run(["perf", "record", "-q", "-F", "199", "-o", data, binary, "run", recipe,
                               f"output_dir={run_dir}"] + overrides, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              cwd=measure.REPOSITORY)
    if recorded.returncode != 0:
        return None
    report = subprocess.run(["perf", "report", "-i", data, "--no-children", "--stdio"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True).stdout
    share = 0.0
    for line in report.splitlines():
        found = re.match(r"\s*([0-9.]+)%", line)
        if found and ROUTER.search(line):
            share += float(found.group(1)) / 100
    return share


def busiest(lines, ranks):
    """Even shares of rows of the busiest rank, the mean over layers and steps: ranks have neighbouring experts."""
    def of_layer(rows):
        each = len(rows) // ranks
        return max(sum(rows[r * each:(r + 1) * each]) for r in range(ranks)) * ranks / sum(rows)
    return statistics.mean(of_layer(rows) for line in lines for rows in line["expert_tokens"])


def main():
    a = measure.options(__doc__, rounds=3, warmup=2, steps=5)
    a.add_argument("--precision", default="fp32")
    a.add_argument("--batch", type=int, default=8, help="sequences of a step")
    a.add_argument("--only", default="", help="pairs whose name has this")
    o = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        tokens = os.path.join(scratch, "tokens")
        measure.write_tokens(tokens, 64 * 512 + 1, 256)
        recipes = {}
        for name, moe in MODELS.items():
            recipes[name] = os.path.join(scratch, name + ".yaml")
            with open(recipes[name], "w") as out:
                out.write(RECIPE.format(name=name, moe=moe, tokens=tokens, batch=o.batch))
        run_dir = os.path.join(scratch, "run")
        few = [f"train.train_steps={o.warmup + o.steps}", f"precision={o.precision}", *measure.FEW_STEPS]

        def run(name, overrides):
            return measure.run_ltrain(o.binary, recipes[name], run_dir, few + overrides)[o.warmup:]

        for name, goal, ranks, both, moe in [pair for pair in PAIRS if o.only in pair[0]]:
            lines = {model: [] for model in MODELS}
            for _ in range(o.rounds):
                for model in MODELS:
                    lines[model] += run(model, both if model == "dense" else both + moe)
            rates = {model: measure.spread([line["tokens_per_sec"] for line in lines[model]]) for model in MODELS}
            for model in ROUTINGS:
                r = {"pair": name, "routing": model, "goal": goal, "this": rates[model], "other": rates["dense"],
                     "busiest": busiest(lines[model], ranks)}
                r["ratio"] = r["this"]["median"] / r["other"]["median"]
                results.append(r)
                print(f"{name}, {ROUTINGS[model]}: {r['ratio']:.3f} (goal {goal}), busiest rank {r['busiest']:.2f} even "
                      "shares", file=sys.stderr)
        share = None if o.only else router_share(o.binary, recipes["learned"], run_dir,
                             [f"train.train_steps={4 * o.steps}", f"precision={o.precision}", *measure.FEW_STEPS[0:2],
                              "launch.threads_per_rank=2"])
    rate = lambda s: f"{s['median']:.0f} ({s['min']:.0f} to {s['max']:.0f})"
    rows = [["", "routing", "even shares of the busiest rank", "MoE, tokens/s", "dense, tokens/s", "MoE ÷ dense",
             "goal"]]
    rows += [[r["pair"], ROUTINGS[r["routing"]], f"{r['busiest']:.2f}", rate(r["this"]), rate(r["other"]),
              f"**{r['ratio']:.3f}**", str(r["goal"])] for r in results]
    told = "not measured" if share is None else f"{100 * share:.2f} %"
    shares = [["what", "part of the run's samples", "goal"], ["router, permutation, combination", told, "5 %"]]
    measure.write_report(
        o.out, "compare-moe", f"8 experts, 2 a token, and a dense model of the same active operations, {o.precision}",
        [("scripts/compare.sh moe " + " ".join(sys.argv[1:])).strip()],
        [("Speed", rows, f"Six layers of 512, feed-forward 2048 or 8 experts of 1024; steps of {o.batch} x 512 tokens in "
          f"micro-batches of 4. Median (smallest to largest) of {o.rounds} alternating runs of {o.steps} steps after "
          f"{o.warmup} of warm-up each. With expert choice shares of rows are even. A router that begins to learn from "
          "random tokens has not: the others wait for the busiest rank, whose shares are the mean over layers and steps."),
         ("Router", shares, "By sampling the whole run of one process of two threads (perf, 199 Hz).")],
        {"results": results, "router_share": share})


main()
