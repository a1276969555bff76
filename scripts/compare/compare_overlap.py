#!/usr/bin/env python3
"""Two ranks whose micro-batches run one after the other, by turns (parallel.overlap_micro_batches), and with products in
parts (parallel.async_tensor_parallel): how long compute waits for communication, and the step, alternating. Writes
docs/measurements/compare-overlap_CPU_DATE.md. Six minutes."""
# build: ltrain
import os
import statistics
import sys
import tempfile

import measure

SEQUENCE = 256
RECIPE = """name: overlap
model:
  architecture: llama
  vocab_size: 257
  hidden_size: {hidden}
  num_hidden_layers: 6
  num_attention_heads: 8
  num_key_value_heads: 8
  max_position_embeddings: 256
  intermediate_size: {inner}
{moe}parallel: {{{parallel}}}
optimizer: {{lr: 1.0e-3, min_lr: 1.0e-4}}
data: {{train: [{{path: {tokens}}}], tokenizer: {{kind: byte}}, seq_length: {sequence}}}
train: {{micro_batch_size: {micro}, global_batch_size: {batch}}}
launch: {{threads_per_rank: 1}}
"""
MOE = "  moe: {num_experts: 4, top_k: 2, intermediate_size: 1024, router: {selection: expert_choice}}\n"
MICROS = 4
WAYS = [("apart", ["parallel.overlap_micro_batches=off", "parallel.async_tensor_parallel=off"]),
        ("by turns", ["parallel.overlap_micro_batches=on"]),
        ("in parts", ["parallel.overlap_micro_batches=off", "parallel.async_tensor_parallel=on"])]
# Name, parallel section, experts, ranks that micro-batches are dealt to.
LAYOUTS = [("tensor, sequence parallelism", "tensor: 2, sequence_parallel: true", "", 1),
           ("tensor", "tensor: 2", "", 1),
           ("context by all-to-all", "context: 2, context_comm: a2a", "", 1),
           ("experts over both", "data: 2, expert: 2", MOE, 2)]


def exposed_ms(line):
    return sum(value for key, value in line.items() if key.startswith("exposed_comm_ms/"))


def main():
    a = measure.options(__doc__, rounds=3, warmup=1, steps=2)
    a.add_argument("--hidden", type=int, default=512)
    a.add_argument("--micro-batch", type=int, default=2, help="sequences of a micro-batch of a rank")
    o = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        run_dir, tokens, recipe = (os.path.join(scratch, name) for name in ("run", "tokens", "recipe.yaml"))
        measure.write_tokens(tokens, 64 * MICROS * SEQUENCE + 1, 256)
        few = [f"train.train_steps={o.warmup + o.steps}", *measure.FEW_STEPS]
        for name, parallel, moe, data in LAYOUTS:
            with open(recipe, "w") as out:
                out.write(RECIPE.format(hidden=o.hidden, inner=4 * o.hidden, moe=moe, parallel=parallel, tokens=tokens,
                                        sequence=SEQUENCE, micro=o.micro_batch, batch=MICROS * o.micro_batch * data))
            ways = WAYS if parallel.startswith("tensor") else WAYS[:2]
            exposed, steps = {way: [] for way, _ in ways}, {way: [] for way, _ in ways}
            for _ in range(o.rounds):
                for way, settings in ways:
                    lines = measure.run_ltrain(o.binary, recipe, run_dir, few + settings)[o.warmup:]
                    exposed[way] += [exposed_ms(line) for line in lines]
                    steps[way] += [line["step_time_ms"] for line in lines]
            apart_exposed, apart_step = (statistics.median(of["apart"]) for of in (exposed, steps))
            for way, _ in ways:
                e, t = measure.spread(exposed[way]), measure.spread(steps[way])
                results.append({"layout": name, "way": way, "exposed": e, "step": t,
                                "exposed_ratio": e["median"] / apart_exposed, "step_ratio": t["median"] / apart_step})
                print(f"{name}, {way}: exposed {e['median'] / apart_exposed:.2f}, step {t['median'] / apart_step:.3f}",
                      file=sys.stderr)
    ms = lambda s: f"{s['median']:.0f} ({s['min']:.0f} to {s['max']:.0f})"
    table = [["layout", "way", "exposed, ms", "÷ apart", "step, ms", "÷ apart"]]
    table += [[r["layout"], r["way"], ms(r["exposed"]), f"**{r['exposed_ratio']:.2f}**", ms(r["step"]),
               f"**{r['step_ratio']:.3f}**"] for r in results]
    measure.write_report(
        o.out, "compare-overlap", "Micro-batches apart, by turns and in parts on two ranks, fp32",
        [("scripts/compare.sh overlap " + " ".join(sys.argv[1:])).strip()],
        [("Exposed communication", table,
          f"Six layers of {o.hidden}, two processes of one thread, {MICROS} micro-batches of {o.micro_batch} x {SEQUENCE} "
          f"tokens a rank. Median (smallest to largest) of {o.rounds} alternating runs of {o.steps} steps after {o.warmup} "
          "of warm-up each. Apart: one micro-batch after the other, products whole; by turns: "
          "`overlap_micro_batches: on`; in parts: `async_tensor_parallel: on`. Exposed: what rank 0's compute waited for "
          "all groups, by metrics.jsonl. Goal: at most 0.5. "
          "Copies between the processes are made by the cores that compute, so that a part of what is hidden is paid in "
          "compute.")],
        {"results": results})


main()
