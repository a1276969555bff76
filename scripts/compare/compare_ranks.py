#!/usr/bin/env python3
"""Two data-parallel ranks of one thread over one rank of one thread (bound to one core): tokens/s, alternating.
Writes docs/measurements/compare-ranks_CPU_DATE.md. Ten minutes on a quiet machine."""
# build: ltrain
import os
import sys
import tempfile

import measure

RECIPE = os.path.join(measure.REPOSITORY, "recipes", "gpt2-124m.yaml")


def main():
    a = measure.options(__doc__, rounds=3, warmup=3, steps=8)
    a.add_argument("--precision", default="fp32")
    a.add_argument("--batch", type=int, default=4, help="sequences a rank")
    a.add_argument("--seq", type=int, default=256)
    a.add_argument("--zero", default="1,0", help="ZeRO stages")
    a.add_argument("--cores", default="0,1", help="the core of the single rank, and the other one")
    o = a.parse_args()
    cores = o.cores.split(",")
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        prefix = os.path.join(scratch, "tokens")
        measure.write_tokens(prefix, 4 * o.batch * o.seq + 1, 50257)

        def tokens_per_second(ranks, zero):
            lines = measure.run_ltrain(o.binary, RECIPE, os.path.join(scratch, "run"), [
                f"data.train.0.path={prefix}", f"data.seq_length={o.seq}", f"train.micro_batch_size={o.batch}",
                f"train.global_batch_size={o.batch * ranks}", f"train.train_steps={o.warmup + o.steps}",
                f"precision={o.precision}", f"parallel.data={ranks}", f"parallel.zero_stage={zero}",
                "launch.threads_per_rank=1", *measure.FEW_STEPS],
                environment={"OMP_NUM_THREADS": "1"}, taskset=cores[0] if ranks == 1 else ",".join(cores))
            counted = lines[o.warmup:]
            return [line["tokens_per_sec"] for line in counted], [line["exposed_comm_ms/dp"] for line in counted]

        for zero in o.zero.split(","):
            one, two, exposed = [], [], []
            for _ in range(o.rounds):
                one += tokens_per_second(1, 0)[0]
                rate, waited = tokens_per_second(2, zero)
                two += rate
                exposed += waited
            r = {"zero_stage": int(zero), "one": measure.spread(one), "two": measure.spread(two),
                 "exposed_comm_ms": measure.spread(exposed)}
            r["ratio"] = r["two"]["median"] / r["one"]["median"]
            results.append(r)
            print(f"ZeRO {zero}: {r['ratio']:.3f}", file=sys.stderr)
    rate = lambda s: f"{s['median']:.1f} ({s['min']:.1f} to {s['max']:.1f})"
    rows = [["ZeRO", "one rank, tokens/s", "two ranks, tokens/s", "two ÷ one", "communication waited for, ms a step"]]
    rows += [[str(r["zero_stage"]), rate(r["one"]), rate(r["two"]), f"**{r['ratio']:.3f}**", rate(r["exposed_comm_ms"])]
             for r in results]
    measure.write_report(
        o.out, "compare-ranks", f"GPT-2 124M, {o.precision}: two ranks of one thread over one rank of one thread",
        [("scripts/compare.sh ranks " + " ".join(sys.argv[1:])).strip()],
        [("Data parallel", rows, f"{o.batch} x {o.seq} tokens a rank; the single rank is bound to core {cores[0]}, the two "
          f"share cores {o.cores}. Median (smallest to largest) of {o.rounds} alternating runs of {o.steps} steps after "
          f"{o.warmup} of warm-up each.")], {"results": results})


main()
