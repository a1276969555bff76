#!/usr/bin/env python3
"""Training on one GPU: ltrain beside the fastest of several variants of PyTorch, in alternating rounds. Writes
OUT/compare-torch-gpu.{md,json}, which name card, driver and versions. Needs: build-cuda/ltrain, a GPU, python3 with
torch (without: ltrain alone, and it says so). --dry-run prints what it would run, and needs none of them.
Usage: scripts/compare.sh torch-gpu [--out FOLDER] [--budget SECONDS] [--case NAME] [--dry-run] ..."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import measure
from gpu_cases import (CASES, LTRAIN_VARIANTS, TORCH_VARIANTS, flops_per_token, idle_share, nsys_intervals, peak_of,
                       recipe_overrides, text_of, tokens_per_step, trace_intervals)

PEER = os.path.join(measure.REPOSITORY, "scripts", "compare", "programs", "torch_gpu.py")
RECIPE = os.path.join(measure.REPOSITORY, "recipes", "gpt2-124m.yaml")


class Failed(Exception):
    """A variant that did not run to its end; the text says why."""


class Rig:
    def __init__(self, o, scratch):
        self.o, self.scratch = o, scratch
        self.prefix = os.path.join(scratch, "tokens")
        self.ends = time.monotonic() + o.budget

    def left(self):
        return self.ends - time.monotonic()

    def ltrain_command(self, case, v, steps):
        return [self.o.binary, "run", RECIPE, f"output_dir={os.path.join(self.scratch, 'run')}",
                f"data.train.0.path={self.prefix}", *recipe_overrides(CASES[case]), f"train.train_steps={steps}",
                f"cuda_graphs={v['cuda_graphs']}", f"deterministic={v['deterministic']}", *measure.FEW_STEPS]

    def ltrain_environment(self, v):
        return dict(os.environ, LTRAIN_MATMUL_ALGORITHMS=v["matmul"], LTRAIN_CACHE_DIR=os.path.join(self.scratch, "cache"))

    def torch_command(self, case, v, steps):
        return [self.o.python, PEER, "--case", case, "--steps", str(steps - self.o.warmup), "--warmup",
                str(self.o.warmup)] + [x for k in ("mode", "weights", "attention", "loss") for x in (f"--{k}", v[k])]

    def finish(self, process, log):
        try:
            code = process.wait(timeout=max(1, self.left()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed("out of the budget's time") from None
        if code != 0:
            with open(log, errors="replace") as f:
                lines = [line.strip() for line in f if line.strip()] or ["it said nothing"]
            memory = [line for line in lines if "out of memory" in line.lower()]
            raise Failed(f"exit code {code}: {(memory or lines)[-1][:200]}")

    def ltrain(self, case, v, steps):
        shutil.rmtree(os.path.join(self.scratch, "run"), ignore_errors=True)
        metrics, log = os.path.join(self.scratch, "run", "metrics.jsonl"), os.path.join(self.scratch, "log")
        begin, first = time.monotonic(), None
        with open(log, "w") as out:
            process = subprocess.Popen(self.ltrain_command(case, v, steps), stdout=out, stderr=out,
                                       cwd=measure.REPOSITORY, env=self.ltrain_environment(v))
        while process.poll() is None and self.left() > 0 and first is None:
            if os.path.exists(metrics) and os.path.getsize(metrics) > 0:
                first = time.monotonic() - begin
            time.sleep(0.005)
        self.finish(process, log)
        with open(metrics) as f:
            lines = [line for line in map(json.loads, f) if "step_time_ms" in line]
        return {"tokens_per_sec": [x["tokens_per_sec"] for x in lines[self.o.warmup:]], "first_step_seconds": first,
                "losses": [x["lm_loss"] for x in lines]}

    def torch(self, case, v, steps, idle=False):
        log = os.path.join(self.scratch, "log")
        begin, first, last = time.monotonic(), None, ""
        with open(log, "w") as errors:
            process = subprocess.Popen(self.torch_command(case, v, steps) + ["--idle"] * idle, stdout=subprocess.PIPE,
                                       stderr=errors, text=True)
        for line in process.stdout:
            last = line
            if line.strip() == "first step":
                first = time.monotonic() - begin
        self.finish(process, log)
        return dict(json.loads(last), first_step_seconds=first)

    def run(self, case, v, steps):
        return self.ltrain(case, v, steps) if "cuda_graphs" in v else self.torch(case, v, steps)

    def ltrain_idle(self, case):
        """Share of three steps by nsys; where it is not there, of one by ltrain's own timing events, which add to it."""
        if not shutil.which("nsys"):
            step = self.o.warmup + 2
            shutil.rmtree(os.path.join(self.scratch, "run"), ignore_errors=True)
            subprocess.run([*self.ltrain_command(case, LTRAIN_VARIANTS[0], step), f"profile.step_start={step}"], check=True,
                           capture_output=True, env=self.ltrain_environment(LTRAIN_VARIANTS[0]), cwd=measure.REPOSITORY,
                           timeout=max(1, self.left()))
            return idle_share(trace_intervals(os.path.join(self.scratch, "run", "traces", f"step-{step}-rank-0.json")))
        report = os.path.join(self.scratch, "idle")
        steps = self.o.warmup + 3
        subprocess.run(["nsys", "profile", "--trace=cuda", "--force-overwrite=true", "--output", report,
                        *self.ltrain_command(case, LTRAIN_VARIANTS[0], steps)], check=True, capture_output=True,
                       env=self.ltrain_environment(LTRAIN_VARIANTS[0]),
                       cwd=measure.REPOSITORY, timeout=max(1, self.left()))
        text = subprocess.run(["nsys", "stats", "--report", "cuda_gpu_trace", "--format", "csv", report + ".nsys-rep"],
                              check=True, capture_output=True, text=True).stdout
        found = nsys_intervals(text)
        return idle_share([i for i in found if i[0] > found[0][0] + (found[-1][1] - found[0][0]) / 2])


def compare(rig, case, with_torch):
    o = rig.o
    steps = o.warmup + o.steps
    variants = LTRAIN_VARIANTS + (TORCH_VARIANTS if with_torch else [])
    screened, notes, share = {}, {}, rig.left() / 2
    began = time.monotonic()
    for i, v in enumerate(variants):  # one short run each: who takes part in the rounds
        if time.monotonic() - began > share:
            notes.update({text_of(x): "not run: out of the budget's time" for x in variants[i:]})
            break
        try:
            screened[i] = measure.spread(rig.run(case, v, o.warmup + 2)["tokens_per_sec"])["median"]
        except Failed as e:
            notes[text_of(v)] = str(e)
        print(f"{case}: {text_of(v)}: {screened.get(i) or notes[text_of(v)]}", file=sys.stderr)
    best = lambda mine: sorted((i for i in screened if ("cuda_graphs" in variants[i]) == mine), key=lambda i: -screened[i])
    chosen = best(True)[:1] + best(False)[:2]
    runs = {i: [] for i in chosen}
    for n in range(o.rounds):
        for i in chosen if n % 2 == 0 else chosen[::-1]:
            if rig.left() < 10:
                break
            try:
                runs[i].append(rig.run(case, variants[i], steps))
            except Failed as e:
                notes[text_of(variants[i])] = str(e)
    peak = peak_of(o.card)
    rows = []
    for i in chosen:
        rates = [r for run in runs[i] for r in run["tokens_per_sec"]]
        if not rates:
            continue
        rate = measure.spread(rates)
        firsts = [run["first_step_seconds"] for run in runs[i] if run["first_step_seconds"] is not None]
        rows.append({"variant": text_of(variants[i]), "ltrain": "cuda_graphs" in variants[i], "tokens_per_sec": rate,
                     "mfu": rate["median"] * flops_per_token(CASES[case]) / peak if peak else None,
                     "first_step_seconds": measure.spread(firsts) if firsts else None})
    return {"case": case, "tokens_per_step": tokens_per_step(CASES[case]), "flops_per_token": flops_per_token(CASES[case]),
            "rows": rows, "notes": notes}


def idle_of(rig, result):
    """Into the first row of each side."""
    for mine in (True, False):
        row = next((r for r in result["rows"] if r["ltrain"] == mine), None)
        if row is None or rig.left() < 30:
            continue
        try:
            if mine:
                row["idle"] = rig.ltrain_idle(result["case"])
            else:
                v = next(v for v in TORCH_VARIANTS if text_of(v) == row["variant"])
                row["idle"] = rig.torch(result["case"], v, rig.o.warmup + 1, idle=True)["idle"]
        except (Failed, subprocess.SubprocessError, ValueError) as e:
            row["idle"] = f"not measured: {e}"


def table(result):
    cell = lambda s, form: "–" if s is None else form.format(**s)
    share = lambda x: "–" if x is None else x if isinstance(x, str) else f"{100 * x:.1f} %"
    theirs = [r["tokens_per_sec"]["median"] for r in result["rows"] if not r["ltrain"]]
    rows = [["", "tokens/s (spread)", "MFU, causal", "start to end of step 1, s", "GPU idle", "ltrain ÷ the fastest PyTorch"]]
    for r in result["rows"]:
        ratio = f"**{r['tokens_per_sec']['median'] / max(theirs):.3f}**" if r["ltrain"] and theirs else ""
        rows.append([r["variant"], cell(r["tokens_per_sec"], "{median:.0f} ({min:.0f} to {max:.0f})"), share(r["mfu"]),
                     cell(r["first_step_seconds"], "{median:.2f}"), share(r.get("idle")), ratio])
    return rows


def markdown(info, results):
    text = [f"# ltrain beside PyTorch on {info['card']}", "",
            f"Driver {info['driver']}; {info['torch']}; ltrain {info['ltrain']}; {info['date']}. Alternating rounds; medians "
            "and spread over the steps of all rounds. MFU: 6 N + 6 L d s operations a token, over the datasheet's dense "
            "bf16 peak.", ""]
    for r in results:
        rows = table(r)
        text += [f"## {r['case']}, {r['tokens_per_step']} tokens a step", "", "| " + " | ".join(rows[0]) + " |",
                 "|" + "---|" * len(rows[0])]
        text += ["| " + " | ".join(row) + " |" for row in rows[1:]]
        text += [""] + [f"- {name}: {why}" for name, why in r["notes"].items()] + [""]
    return "\n".join(text).rstrip() + "\n"


def card_and_driver():
    if not shutil.which("nvidia-smi"):
        sys.exit("compare-torch-gpu: no GPU: nvidia-smi is not there; --dry-run shows what would be run")
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"compare-torch-gpu: no GPU: {(done.stdout + done.stderr).strip()}")
    return [x.strip() for x in done.stdout.splitlines()[0].split(",")]


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build-cuda", "ltrain"))
    a.add_argument("--python", default=sys.executable, help="that has torch")
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--case", action="append", choices=CASES, help="may be given again; default: all")
    a.add_argument("--budget", type=float, default=3600, help="seconds for everything; what they do not reach is listed")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--warmup", type=int, default=3)
    a.add_argument("--steps", type=int, default=8)
    a.add_argument("--dry-run", action="store_true", help="print what would be run, as JSON")
    o = a.parse_args()
    cases = o.case or list(CASES)
    if o.dry_run:
        rig = Rig(o, "SCRATCH")
        steps = o.warmup + o.steps
        return print(json.dumps([
            {"case": c, "tokens_per_step": tokens_per_step(CASES[c]), "flops_per_token": flops_per_token(CASES[c]),
             "recipe": [x for x in recipe_overrides(CASES[c])],
             "variants": [{"text": text_of(v), "matmul": v["matmul"],
                           "command": rig.ltrain_command(c, v, steps)} for v in LTRAIN_VARIANTS] +
                         [{"text": text_of(v), "command": rig.torch_command(c, v, steps)} for v in TORCH_VARIANTS]}
            for c in cases], indent=1))
    o.card, driver = card_and_driver()
    torch = subprocess.run([o.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    with_torch = torch.returncode == 0
    info = dict(measure.machine(), card=o.card, driver=driver,
                torch=f"PyTorch {torch.stdout.strip()}" if with_torch else "PyTorch is not there: ltrain alone")
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        rig = Rig(o, scratch)
        measure.write_tokens(rig.prefix, (o.warmup + o.steps + 1) * max(tokens_per_step(CASES[c]) for c in cases) + 1, 50257)
        everything = rig.ends
        for i, c in enumerate(cases):
            rig.ends = min(everything, time.monotonic() + (everything - time.monotonic()) / (len(cases) - i))
            results.append(compare(rig, c, with_torch))
            idle_of(rig, results[-1])
    os.makedirs(o.out, exist_ok=True)
    base = os.path.join(o.out, "compare-torch-gpu")
    with open(base + ".md", "w") as out:
        out.write(markdown(info, results))
    with open(base + ".json", "w") as out:
        json.dump({"machine": info, "results": results}, out, indent=1)
        out.write("\n")
    print(markdown(info, results))
    if not any(r["ltrain"] for result in results for r in result["rows"]):
        sys.exit("compare-torch-gpu: ltrain ran no case to its end")


if __name__ == "__main__":
    main()
