#!/usr/bin/env python3
"""An MoE model with and without model.moe.row_budget, at even routing, at a skew of three even shares and with all tokens
to one rank: step time, alternating, and peak memory beside the plan. Writes
docs/measurements/compare-row-budget_CPU_DATE.md. Five minutes on a quiet machine."""
# build: ltrain
import array
import os
import random
import statistics
import sys
import tempfile

import measure

RANKS, SEQUENCE = 4, 512
RECIPE = """name: budget
model:
  architecture: llama
  vocab_size: 257
  hidden_size: 256
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 4
  max_position_embeddings: 512
  intermediate_size: 1024
  moe: {{num_experts: {ranks}, top_k: 1, intermediate_size: 1024, balance: {{kind: none}}}}
parallel: {{data: {ranks}, expert: {ranks}}}
optimizer: {{lr: 1.0e-3, min_lr: 1.0e-4}}
data: {{train: [{{path: {tokens}}}], tokenizer: {{kind: byte}}, seq_length: {sequence}}}
train: {{micro_batch_size: 4, global_batch_size: {batch}}}
launch: {{threads_per_rank: 1}}
"""
# Name, and how many tokens of a sequence are one byte, which all go to one expert of a layer.
ROUTINGS = [("even", 0.0), ("three shares", 0.35), ("all to one rank", 1.0)]


def write_tokens(prefix, alike, sequences, seed=1):
    """Random bytes, but for the first part of each sequence."""
    same = round(alike * SEQUENCE)
    measure.write_tokens(prefix, sequences * SEQUENCE + 1, 256, seed)
    rng = random.Random(seed)
    tokens = array.array("H")
    for _ in range(sequences):
        tokens.extend([97] * same)
        tokens.extend(rng.randrange(256) for _ in range(SEQUENCE - same))
    tokens.append(97)
    with open(prefix + ".bin", "wb") as out:
        tokens.tofile(out)


def shares(line):
    """Of the busiest rank, the mean over layers."""
    return statistics.mean(max(layer) * RANKS / sum(layer) for layer in line["expert_tokens"])


def main():
    a = measure.options(__doc__, rounds=3, warmup=2, steps=5)
    a.add_argument("--precision", default="fp32")
    a.add_argument("--budget", default="1.5")
    a.add_argument("--batch", type=int, default=16, help="sequences of a step")
    o = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = os.path.join(scratch, "run")
        # Weights stay as they begin, and so does the routing.
        few = [f"train.train_steps={o.warmup + o.steps}", f"precision={o.precision}", *measure.FEW_STEPS,
               "optimizer.lr=1e-30"]
        for name, alike in ROUTINGS:
            tokens, recipe = os.path.join(scratch, f"tokens-{alike:.2f}"), os.path.join(scratch, f"{alike:.2f}.yaml")
            write_tokens(tokens, alike, 8 * o.batch)
            with open(recipe, "w") as out:
                out.write(RECIPE.format(tokens=tokens, batch=o.batch, ranks=RANKS, sequence=SEQUENCE))
            r = {"routing": name}
            times = {"without": [], "with": []}
            for _ in range(o.rounds):
                for which, more in (("without", []), ("with", [f"model.moe.row_budget={o.budget}"])):
                    lines = measure.run_ltrain(o.binary, recipe, run_dir, few + more)[o.warmup:]
                    times[which] += [line["step_time_ms"] for line in lines]
                    r["shares"] = statistics.mean(shares(line) for line in lines)
                    r[which + "_arena"] = lines[-1]["mem_peak_gib"] * 1024, lines[-1]["mem_plan_gib"] * 1024
                    usage = measure.rank_usage(run_dir)[0]
                    r[which + "_usage"] = usage
                    if which == "with":
                        r["beyond"] = statistics.mean(line["rows_beyond_budget"] for line in lines)
                        r["slices"] = statistics.mean(line["slices_beyond_budget"] for line in lines)
            r.update((which, measure.spread(times[which])) for which in times)
            r["slowdown"] = r["with"]["median"] / r["without"]["median"]
            results.append(r)
            print(f"{name}: {r['shares']:.2f} shares, {r['slowdown']:.3f} times as long with the budget", file=sys.stderr)
    even = results[0]["with"]["median"]
    ms = lambda s: f"{s['median']:.0f} ({s['min']:.0f} to {s['max']:.0f})"
    times = [["routing", "even shares of the busiest rank", "rows beyond", "further slices", "without, ms",
              f"budget {o.budget}, ms", "with ÷ without", "with ÷ with at even routing"]]
    times += [[r["routing"], f"{r['shares']:.2f}", f"{100 * r['beyond']:.1f} %", f"{r['slices']:.2f}", ms(r["without"]),
               ms(r["with"]), f"**{r['slowdown']:.3f}**", f"{r['with']['median'] / even:.2f}"] for r in results]
    memory = [["routing", "without: arena used, MiB", "planned", f"budget {o.budget}: arena used, MiB", "planned",
               "used ÷ planned"]]
    memory += [[r["routing"], *(f"{v:.1f}" for v in r["without_arena"]), *(f"{v:.1f}" for v in r["with_arena"]),
                f"**{r['with_arena'][0] / r['with_arena'][1]:.4f}**"] for r in results]
    measure.write_report(
        o.out, "compare-row-budget", f"An MoE model with and without model.moe.row_budget: {o.budget}, {o.precision}",
        [("scripts/compare.sh row-budget " + " ".join(sys.argv[1:])).strip()],
        [("Time", times, f"Four layers of 256, {RANKS} experts of 1024, one a token, over {RANKS} processes of one thread; "
          f"steps of {o.batch} x {SEQUENCE} tokens in micro-batches of 4. Step time, median (smallest to largest) of "
          f"{o.rounds} alternating runs of {o.steps} steps after {o.warmup} of warm-up each. The routing follows from the "
          "tokens: those of one byte go to one expert of a layer. Goal at three shares: with ÷ without at most 1.35."),
         ("Memory", memory, "Of rank 0, by metrics.jsonl. Goal: within 3 % of the plan under any routing.")],
        {"results": results})


main()
