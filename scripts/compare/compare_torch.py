#!/usr/bin/env python3
"""GPT-2 124M training on this CPU: ltrain beside the fastest of several variants of PyTorch; AdamW alone as well.
Writes docs/measurements/compare-torch_CPU_DATE.md. Needs: build/ (scripts/build.sh), python3-torch,
libopenblas0-openmp or libblis4-openmp. An hour on a quiet machine; --rounds 1 --steps 2 for a look.
--newest: beside PyPI's newest PyTorch, compiled or not; makes a virtual environment (some GB) in build/venv-torch, or
takes the Python of $PYTHON. Writes compare-torch-newest_CPU_DATE.{md,json}."""
# build: ltrain adamw_speed
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import measure

PEER = os.path.join(measure.REPOSITORY, "scripts", "compare", "programs", "torch_gpt2.py")
RECIPE = os.path.join(measure.REPOSITORY, "recipes", "gpt2-124m.yaml")
BLAS_FOLDERS = {"openblas-openmp": "libopenblas0-openmp", "blis-openmp": "libblis4-openmp"}
VOCAB = 50304


def blas_choices():
    found = {}
    for folder, package in BLAS_FOLDERS.items():
        for path in glob.glob(f"/usr/lib/*/{folder}/libblas.so.3"):
            found[folder] = os.path.dirname(path)
    if not found:
        sys.exit(f"install {' or '.join(BLAS_FOLDERS.values())}: PyTorch on another BLAS would be no fair peer")
    return found


def newest_python():
    """The interpreter of a virtual environment with PyPI's newest PyTorch (some GB), made where it is not there."""
    venv = os.path.join(measure.REPOSITORY, "build", "venv-torch")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "torch", "numpy"], check=True)
    return python


def newest_variants():
    """Of PyPI's PyTorch, which brings its BLAS."""
    for attention in ("builtin", "baddbmm"):
        for adamw in ("fused", "foreach"):
            yield {"blas": "own BLAS", "attention": attention, "linear": "dense", "adamw": adamw}
        yield {"blas": "own BLAS", "attention": attention, "linear": "dense", "adamw": "fused", "compile": True}


def variants(newest):
    if newest:
        yield from newest_variants()
        return
    for blas in blas_choices():
        for attention in ("manual", "baddbmm", "builtin"):
            yield {"blas": blas, "attention": attention, "linear": "dense", "adamw": "foreach"}
        yield {"blas": blas, "attention": "baddbmm", "linear": "dense", "adamw": "loop"}
    yield {"blas": next(iter(blas_choices())), "attention": "baddbmm", "linear": "mkldnn", "adamw": "foreach"}


def text_of(v):
    how = ", compiled" if v.get("compile") else ""
    return f"{v['blas']}, {v['attention']} attention, {v['linear']} linear, {v['adamw']} AdamW{how}"


def run_torch(o, variant, arguments, check=True):
    command = [o.python, PEER, "--attention", variant["attention"], "--linear", variant["linear"],
               "--adamw", variant["adamw"], "--threads", str(o.threads)] + arguments
    command += ["--compile"] if variant.get("compile") else []
    environment = dict(os.environ, OMP_NUM_THREADS=str(o.threads))
    if not o.newest:
        environment["LD_LIBRARY_PATH"] = blas_choices()[variant["blas"]]
    environment.pop("OMP_PROC_BIND", None)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        if check:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return None
    return json.loads(done.stdout)


def ltrain_steps(o, scratch, prefix, batch, seq, dtype, steps, extra=()):
    run_dir = os.path.join(scratch, "run")
    return measure.run_ltrain(o.binary, RECIPE, run_dir, [
        f"data.train.0.path={prefix}", f"data.seq_length={seq}", f"train.micro_batch_size={batch}",
        f"train.global_batch_size={batch}", f"train.train_steps={steps}", f"precision={dtype}", "parallel.data=1",
        f"launch.threads_per_rank={o.threads}", *measure.FEW_STEPS, *extra]), run_dir


def compare(o, scratch, batch, seq, dtype):
    """One shape and type: the parity gate, the choice of the variant, then A B A B."""
    prefix = os.path.join(scratch, f"tokens-{batch}x{seq}")
    measure.write_tokens(prefix, batch * seq + 1, 50257)  # one batch of samples: every step sees them all
    shape = ["--data", prefix, "--batch", str(batch), "--seq", str(seq), "--dtype", dtype, "--vocab", str(VOCAB)]
    # Parity: ltrain's first loss against PyTorch's from the same weights (saved after a step that moves nothing).
    lines, run_dir = ltrain_steps(o, scratch, prefix, batch, seq, dtype, 1,
                                  ["optimizer.lr=1e-30", "checkpoint.save_at_end=true"])
    checkpoint = sorted(glob.glob(os.path.join(run_dir, "checkpoints", "step-*")))[-1]
    first = run_torch(o, next(variants(o.newest)), shape + ["--checkpoint", checkpoint, "--warmup", "0", "--steps", "1"])
    ours, theirs = lines[0]["lm_loss"], first["loss"][0]
    off, allowed = abs(ours - theirs) / theirs, 1e-4 if dtype == "fp32" else 2e-3
    print(f"{batch}x{seq} {dtype}: first loss ltrain {ours:.6f}, PyTorch {theirs:.6f}, {off:.1e} apart", file=sys.stderr)
    if off > allowed:
        sys.exit(f"parity gate: the first losses differ by {off:.2e}, more than {allowed}: no timing is worth printing")
    tried = []
    for v in variants(o.newest):
        if o.only not in text_of(v):
            continue
        r = run_torch(o, v, shape + ["--warmup", str(o.warmup), "--steps", str(o.select_steps)], check=False)
        libraries = ["/".join(path.split("/")[-2:]) for path in r["blas"]] if r else None
        tried.append({"variant": v, "step_ms": measure.spread(r["step_ms"]) if r else None, "blas": libraries})
        print(f"  {text_of(v)}: {tried[-1]['step_ms']['median'] if r else 'does not run'}", file=sys.stderr)
    best = min((t for t in tried if t["step_ms"]), key=lambda t: t["step_ms"]["median"])["variant"]
    ltrain_ms, torch_ms, torch_adamw = [], [], []
    for _ in range(o.rounds):
        lines, _ = ltrain_steps(o, scratch, prefix, batch, seq, dtype, o.warmup + o.steps)
        ltrain_ms += [line["step_time_ms"] for line in lines[o.warmup:]]
        r = run_torch(o, best, shape + ["--warmup", str(o.warmup), "--steps", str(o.steps)])
        torch_ms += r["step_ms"]
        torch_adamw += r["adamw_ms"]
    return {"batch": batch, "seq": seq, "dtype": dtype, "loss": {"ltrain": ours, "torch": theirs, "relative": off},
            "variants": tried, "peer": best, "ltrain_ms": measure.spread(ltrain_ms), "torch_ms": measure.spread(torch_ms),
            "torch_adamw_in_step_ms": measure.spread(torch_adamw), "torch": r["torch"],
            "matmul": run_torch(o, best, shape[2:] + ["--matmul-only"]),
            "ratio": measure.spread(torch_ms)["median"] / measure.spread(ltrain_ms)["median"]}


def compare_adamw(o):
    ours, theirs = [], []
    fastest = min(("foreach", "fused" if o.newest else "loop"), key=lambda kind: measure.spread(run_torch(
        o, dict(next(variants(o.newest)), adamw=kind), ["--adamw-only", "--warmup", "1", "--steps", "3"])["adamw_ms"])["median"])
    for _ in range(o.rounds):
        done = subprocess.run([o.adamw_binary, "124475904", str(o.steps)], stdout=subprocess.PIPE, check=True, text=True,
                              env=dict(os.environ, OMP_NUM_THREADS=str(o.threads)))
        ours += json.loads(done.stdout)["adamw_ms"]
        theirs += run_torch(o, dict(next(variants(o.newest)), adamw=fastest),
                            ["--adamw-only", "--warmup", str(o.warmup), "--steps", str(o.steps)])["adamw_ms"]
    return {"peer": fastest, "ltrain_ms": measure.spread(ours), "torch_ms": measure.spread(theirs),
            "ratio": measure.spread(theirs)["median"] / measure.spread(ours)["median"]}


def ms(s):
    return f"{s['median']:.0f} ({s['min']:.0f} to {s['max']:.0f})"


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--adamw-binary", default=os.path.join(measure.REPOSITORY, "build", "adamw_speed"))
    a.add_argument("--python", help="an interpreter that has torch (default: $PYTHON, /usr/bin/python3; with --newest "
                   "one in build/venv-torch)")
    a.add_argument("--newest", action="store_true", help="the interpreter's PyTorch is PyPI's, with a BLAS of its own")
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--shapes", default="4x64,4x256")
    a.add_argument("--dtypes", default="fp32,bf16")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=3, help="times that A and B alternate")
    a.add_argument("--warmup", type=int, default=3, help="steps of each run that do not count")
    a.add_argument("--steps", type=int, default=8, help="steps of each run that count")
    a.add_argument("--select-steps", type=int, default=3, help="steps of each variant of PyTorch")
    a.add_argument("--only", default="", help="variants of PyTorch whose description contains this (for a look)")
    o = a.parse_args()
    o.python = o.python or os.environ.get("PYTHON") or (newest_python() if o.newest else "/usr/bin/python3")
    if not any(o.only in text_of(v) for v in variants(o.newest)):
        a.error(f"--only {o.only}: no variant has that; there are: " + "; ".join(map(text_of, variants(o.newest))))
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in o.dtypes.split(","):
            for shape in o.shapes.split(","):
                results.append(compare(o, scratch, *map(int, shape.split("x")), dtype))
    adamw = compare_adamw(o)
    rows = [["type", "batch x sequence", "ltrain ms", "PyTorch ms", "ltrain tokens/s", "PyTorch tokens/s",
             "PyTorch ÷ ltrain", "floor ms", "fastest variant of PyTorch", "first losses apart"]]
    for r in results:
        tokens = r["batch"] * r["seq"] * 1e3
        rows.append([r["dtype"], f"{r['batch']} x {r['seq']}", ms(r["ltrain_ms"]), ms(r["torch_ms"]),
                     f"{tokens / r['ltrain_ms']['median']:.0f}", f"{tokens / r['torch_ms']['median']:.0f}",
                     f"**{r['ratio']:.2f}**", f"{1e3 * r['matmul']['operations'] / r['matmul']['best']:.0f}",
                     text_of(r["peer"]), f"{r['loss']['relative']:.1e}"])
    adamw_rows = [["ltrain ms", "PyTorch ms", "PyTorch ÷ ltrain", "fastest variant of PyTorch"],
                  [ms(adamw["ltrain_ms"]), ms(adamw["torch_ms"]), f"**{adamw['ratio']:.2f}**", adamw["peer"]]]
    tried_rows = [["type", "batch x sequence", "variant", "ms"]]
    for r in results:
        for t in r["variants"]:
            tried_rows.append([r["dtype"], f"{r['batch']} x {r['seq']}", text_of(t["variant"]),
                               ms(t["step_ms"]) if t["step_ms"] else "does not run"])
    said = list(sys.argv[1:])
    if "--python" in said:  # a path of this machine
        del said[said.index("--python"):said.index("--python") + 2]
    command = "scripts/compare.sh torch " + " ".join(said)
    measure.write_report(
        o.out, "compare-torch-newest" if o.newest else "compare-torch", f"GPT-2 124M training step: ltrain and PyTorch {results[0]['torch']}, {o.threads} threads",
        [command.strip()],
        [("Whole step", rows, f"Median (smallest to largest) of {o.rounds} alternating runs of {o.steps} steps after "
          f"{o.warmup} of warm-up each: forward, backward, clipping, AdamW. ltrain: step_time_ms of `ltrain run`. bf16: "
          "ltrain with fp32 master weights, PyTorch with autocast. Same weights, same tokens, no dropout. Floor: the "
          "operations of the layers' and the head's products over the best rate of any of them, as PyTorch computes them "
          "alone."),
         ("AdamW alone, 124 M parameters in fp32", adamw_rows, ""), ("Variants of PyTorch tried", tried_rows, "")],
        {"steps": results, "adamw": adamw})


main()
