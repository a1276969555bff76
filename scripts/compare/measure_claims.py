#!/usr/bin/env python3
"""What docs/claims.md measures: balance loss and the spread of experts' loads, capacity and the loss, recomputation and
the time of a step. Writes docs/measurements/claims_CPU_DATE.md. Ten minutes on a quiet machine; the text of
scripts/quickstart.sh has to be there."""
# build: ltrain
import argparse
import json
import os
import statistics
import sys
import tempfile

import measure

MOE_RECIPE = os.path.join("recipes", "moe.yaml")
DENSE_RECIPE = """name: dense
model:
  architecture: llama
  vocab_size: 257
  hidden_size: 512
  num_hidden_layers: 6
  num_attention_heads: 8
  max_position_embeddings: 1024
  intermediate_size: 1408
optimizer: {{lr: 1.0e-3, min_lr: 1.0e-4}}
data: {{train: [{{path: {tokens}}}], tokenizer: {{kind: byte}}, seq_length: 512}}
train: {{micro_batch_size: 4, global_batch_size: 8}}
"""
BALANCE = [("none", ["model.moe.balance.kind=none", "~model.moe.balance.coeff"]),
           ("switch, 0.001", ["model.moe.balance.coeff=0.001"]),
           ("switch, 0.01", []),
           ("switch, 0.1", ["model.moe.balance.coeff=0.1"])]
CAPACITY = [("all", []), ("1.25", ["model.moe.capacity_factor=1.25"]), ("1.0", ["model.moe.capacity_factor=1.0"]),
            ("0.5", ["model.moe.capacity_factor=0.5"])]


def variance_of_loads(lines):
    """Of an expert's share over the even one, over experts; the mean over layers and the last quarter of the steps."""
    out = []
    for line in lines[-len(lines) // 4:]:
        for layer in line["expert_tokens"]:
            if layer:
                even = sum(layer) / len(layer)
                out.append(statistics.pvariance([n / even for n in layer]))
    return statistics.mean(out)


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--steps", type=int, default=300)
    a.add_argument("--seeds", type=int, default=3)
    a.add_argument("--rounds", type=int, default=3)
    o = a.parse_args()
    results = {"balance": [], "capacity": [], "recompute": []}
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = os.path.join(scratch, "run")

        def moe_runs(overrides):
            for seed in range(1, o.seeds + 1):
                lines = measure.run_ltrain(
                    o.binary, MOE_RECIPE, run_dir,
                    ["parallel.data=1", "parallel.expert=1", "parallel.zero_stage=0", f"train.train_steps={o.steps}",
                     f"train.eval_interval={o.steps}", "train.eval_steps=16", "checkpoint.save_interval=0",
                     "checkpoint.save_at_end=false", f"seed={seed}", *overrides])
                with open(os.path.join(run_dir, "metrics.jsonl")) as metrics:
                    loss = [line["eval_loss"] for line in map(json.loads, metrics) if "eval_loss" in line][-1]
                yield lines, loss

        def losses(runs):
            return measure.spread([loss for _, loss in runs])

        for name, overrides in BALANCE:
            runs = list(moe_runs(overrides))
            results["balance"].append({"loss": name, "variance": measure.spread([variance_of_loads(lines) for lines, _ in runs]),
                                       "eval_loss": losses(runs)})
            print(results["balance"][-1], file=sys.stderr)
        for name, overrides in CAPACITY:
            runs = list(moe_runs(overrides))
            dropped = [statistics.mean(line.get("drop_rate", 0.0) for line in lines) for lines, _ in runs]
            results["capacity"].append({"factor": name, "dropped": measure.spread(dropped), "eval_loss": losses(runs)})
            print(results["capacity"][-1], file=sys.stderr)

        tokens, recipe = os.path.join(scratch, "tokens"), os.path.join(scratch, "dense.yaml")
        measure.write_tokens(tokens, 64 * 512 + 1, 256)
        with open(recipe, "w") as out:
            out.write(DENSE_RECIPE.format(tokens=tokens))
        times = {"none": [], "full": []}
        for _ in range(o.rounds):
            for kind, seen in times.items():
                lines = measure.run_ltrain(o.binary, recipe, run_dir, ["train.train_steps=7", *measure.FEW_STEPS,
                                                                       f"recompute.granularity={kind}"])
                seen += [line["step_time_ms"] for line in lines[2:]]
        results["recompute"] = {kind: measure.spread(seen) for kind, seen in times.items()}

    number = lambda s: f"{s['median']:.4f} ({s['min']:.4f} to {s['max']:.4f})"
    base = results["balance"][0]["variance"]["median"]
    balance = [["balance loss", "variance of loads", "less by", "loss on held-out text"]]
    balance += [[r["loss"], number(r["variance"]), f"{100 * (1 - r['variance']['median'] / base):.0f} %",
                 number(r["eval_loss"])] for r in results["balance"]]
    kept = results["capacity"][0]["eval_loss"]["median"]
    capacity = [["capacity factor", "choices dropped", "loss on held-out text", "more by"]]
    capacity += [[r["factor"], f"{100 * r['dropped']['median']:.1f} %", number(r["eval_loss"]),
                  f"{100 * (r['eval_loss']['median'] / kept - 1):+.1f} %"] for r in results["capacity"]]
    step = lambda s: f"{s['median']:.1f} ms ({s['min']:.1f} to {s['max']:.1f})"
    both = results["recompute"]
    more = both["full"]["median"] / both["none"]["median"] - 1
    recompute = [["nothing computed again", "every layer computed again", "longer by"],
                 [step(both["none"]), step(both["full"]), f"{100 * more:.1f} %"]]
    model = (f"recipes/moe.yaml on one process: four layers of 128, 8 experts, 2 a token, {o.steps} steps of 1,024 bytes of "
             f"the quickstart's text, {o.seeds} seeds: median (smallest to largest).")
    measure.write_report(
        o.out, "claims", "Claims about balance, capacity and recomputation",
        [("scripts/compare.sh measure-claims " + " ".join(sys.argv[1:])).strip()],
        [("Balance loss", balance, model + " Loads: choices of an expert over the even share, in each layer and step of "
          "the last quarter."),
         ("Capacity", capacity, model + " Balance loss switch, 0.01."),
         ("Recomputation", recompute, f"Six layers of 512, 8 x 512 tokens a step, fp32; {o.rounds} alternating runs of 5 "
          "steps each.")],
        results)


main()
