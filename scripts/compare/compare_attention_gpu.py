#!/usr/bin/env python3
"""Causal attention alone on one GPU, forward and backward in bf16: ltrain's native kernels and its cuDNN beside PyTorch's
with cuDNN and with flash, in alternating rounds. Writes OUT/compare-attention-gpu.{md,json}. Needs: build-cuda/ltrain, a GPU, python3 with torch
(without: ltrain alone, and it says so). --dry-run prints what it would run, and needs none of them.
Usage: scripts/compare.sh attention-gpu [--out FOLDER] [--rounds N] [--dry-run] ..."""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import measure
from compare_torch_gpu import card_and_driver
from gpu_cases import op_seconds

PEER = os.path.join(measure.REPOSITORY, "scripts", "compare", "programs", "torch_attention.py")
RECIPE = os.path.join(measure.REPOSITORY, "recipes", "gpt2-124m.yaml")
HIDDEN, TOKENS = 2048, 16384
# The most telling first. Shapes beyond the time budget are listed as not run.
SHAPES = [dict(dim=dim, heads=HIDDEN // dim, seq=seq, batch=TOKENS // seq) for seq in (4096, 16384, 1024, 8192, 2048)
          for dim in (128, 64)]
FIRST, STEPS = 4, 8  # step that is timed first, and one after the last


def flops(s):
    """Of forward and backward: seven products of the causal half."""
    return 7 * s["batch"] * s["heads"] * s["seq"] ** 2 * s["dim"]


def ltrain_command(binary, scratch, s, *more):
    """A model of one layer that has such attention; its steps from FIRST on are profiled."""
    return [binary, "run", RECIPE, f"output_dir={os.path.join(scratch, 'run')}",
            f"data.train.0.path={os.path.join(scratch, 'tokens')}", "model.architecture=llama", "model.vocab_size=50304",
            f"model.hidden_size={HIDDEN}", "model.intermediate_size=1024", "model.num_hidden_layers=1",
            f"model.num_attention_heads={s['heads']}", f"model.num_key_value_heads={s['heads']}",
            f"model.max_position_embeddings={s['seq']}", "device=cuda", "precision=bf16", "parallel.data=1",
            "parallel.zero_stage=0", f"data.seq_length={s['seq']}", f"train.micro_batch_size={s['batch']}",
            f"train.global_batch_size={s['batch']}", f"train.train_steps={STEPS}", f"profile.step_start={FIRST}",
            f"profile.step_end={STEPS + 1}", "cuda_graphs=off", *measure.FEW_STEPS, *more]


# Who computes it in ltrain. With cudnn a run fails where it would be anything else.
OURS = {"ltrain, native kernels": ("attention_backend=own",),
        "ltrain, cuDNN": ("attention_backend=cudnn", "deterministic=false"),
        "ltrain, cuDNN, deterministic": ("attention_backend=cudnn",)}


def torch_command(python, s, attention):
    return [python, PEER, "--attention", attention] + [x for k in ("batch", "heads", "seq", "dim")
                                                       for x in (f"--{k}", str(s[k]))]


def last_line(text):
    return ([line for line in text.splitlines() if line.strip()] or ["it said nothing"])[-1][:200]


def ltrain(binary, scratch, s, *more):
    shutil.rmtree(os.path.join(scratch, "run"), ignore_errors=True)
    done = subprocess.run(ltrain_command(binary, scratch, s, *more), capture_output=True, text=True, cwd=measure.REPOSITORY)
    if done.returncode != 0:
        return last_line(done.stderr)
    traces = sorted(glob.glob(os.path.join(scratch, "run", "traces", "*.json")))
    return [sum(op_seconds(path).get(op, 0) for op in ("attention_forward", "attention_backward")) for path in traces]


def torch(python, s, attention):
    done = subprocess.run(torch_command(python, s, attention), capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"] if done.returncode == 0 else last_line(done.stderr)


def row_of(s, found):
    """`found`: by name, seconds of all rounds, or a text that says why there are none."""
    cells, medians = [], {}
    for name, seconds in found.items():
        if isinstance(seconds, str):
            cells.append(f"not measured: {seconds}")
            continue
        spread = measure.spread(seconds)
        medians[name] = spread["median"]
        cells.append("{:.0f} ({:.2f} to {:.2f} ms)".format(flops(s) / spread["median"] / 1e12, 1e3 * spread["min"],
                                                           1e3 * spread["max"]))
    ours = [v for name, v in medians.items() if name.startswith("ltrain")]
    theirs = [v for name, v in medians.items() if not name.startswith("ltrain")]
    ratio = f"**{min(theirs) / min(ours):.3f}**" if theirs and ours else ""
    return [str(s["dim"]), str(s["seq"]), str(s["batch"])] + cells + [ratio]


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build-cuda", "ltrain"))
    a.add_argument("--python", default=sys.executable, help="that has torch")
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--budget", type=float, default=1200, help="seconds for everything")
    a.add_argument("--dry-run", action="store_true", help="print what would be run, as JSON")
    o = a.parse_args()
    if o.dry_run:
        return print(json.dumps([dict(s, flops=flops(s), ltrain=ltrain_command(o.binary, "SCRATCH", s, *OURS["ltrain, cuDNN"]),
                                      torch=[torch_command(o.python, s, k) for k in ("cudnn", "flash")])
                                 for s in SHAPES], indent=1))
    ends = time.monotonic() + o.budget
    card, driver = card_and_driver()
    has_torch = subprocess.run([o.python, "-c", "import torch"], capture_output=True).returncode == 0
    runs = {name: lambda s, scratch, more=more: ltrain(o.binary, scratch, s, *more) for name, more in OURS.items()}
    for k in ("cudnn", "flash") if has_torch else ():
        runs[f"PyTorch, {k}"] = lambda s, scratch, k=k: torch(o.python, s, k)
    rows, record = [["head dim", "seq", "batch"] + [f"{name}, TFLOP/s" for name in runs] + ["ltrain's faster ÷ the others'"]], []
    with tempfile.TemporaryDirectory() as scratch:
        measure.write_tokens(os.path.join(scratch, "tokens"), (STEPS + 1) * TOKENS + 1, 50257)
        for s in SHAPES:
            if time.monotonic() > ends:
                rows.append([str(s[k]) for k in ("dim", "seq", "batch")] + ["not run: out of the budget's time"] * len(runs) + [""])
                continue
            found = {}
            for n in range(o.rounds):
                for name in list(runs) if n % 2 == 0 else list(runs)[::-1]:
                    got, before = runs[name](s, scratch), found.get(name, [])
                    found[name] = got if isinstance(got, str) or isinstance(before, str) else before + got
            rows.append(row_of(s, {name: found[name] for name in runs}))
            record.append(dict(s, seconds=found))
            print(" ".join(rows[-1]), file=sys.stderr)
    text = [f"# Causal attention, forward and backward in bf16, on {card}", "",
            f"Driver {driver}; ltrain {measure.machine()['ltrain']}; {measure.machine()['date']}. {TOKENS} tokens of width "
            f"{HIDDEN}; alternating rounds; median rate, spread of times. Seven products of the causal half are counted. "
            "ltrain's times are those of its profile, by timing events.", "", "| " + " | ".join(rows[0]) + " |",
            "|" + "---|" * len(rows[0])] + ["| " + " | ".join(row) + " |" for row in rows[1:]]
    os.makedirs(o.out, exist_ok=True)
    base = os.path.join(o.out, "compare-attention-gpu")
    with open(base + ".md", "w") as out:
        out.write("\n".join(text) + "\n")
    with open(base + ".json", "w") as out:
        json.dump({"card": card, "driver": driver, "results": record}, out, indent=1)
        out.write("\n")
    print("\n".join(text))
    own = [r["seconds"]["ltrain, native kernels"] for r in record]
    if not any(seconds for seconds in own if not isinstance(seconds, str)):
        sys.exit("compare-attention-gpu: ltrain ran no shape to its end")


if __name__ == "__main__":
    main()
