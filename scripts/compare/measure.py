"""What the comparison scripts share: token files, runs of ltrain, medians, and the report."""
import argparse
import array
import datetime
import glob
import json
import os
import platform
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = os.path.join(REPOSITORY, "docs", "measurements")
RESULTS = os.path.join(REPOSITORY, "scripts", "compare", "results")


# For a few steps of a recipe that is written for many: no saves, one learning rate.
FEW_STEPS = ["checkpoint.save_interval=0", "checkpoint.save_at_end=false", "schedule.lr_decay_style=constant",
             "schedule.lr_warmup_steps=0", "~optimizer.min_lr", "optimizer.lr=3e-4"]


def options(doc, rounds, warmup, steps):
    """A parser of what every script that alternates runs of a few steps takes."""
    a = argparse.ArgumentParser(description=doc)
    a.add_argument("--binary", default=os.path.join(REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=PAGES)
    a.add_argument("--rounds", type=int, default=rounds)
    a.add_argument("--warmup", type=int, default=warmup)
    a.add_argument("--steps", type=int, default=steps)
    return a


def write_tokens(prefix, count, vocab, seed=1):
    """PREFIX.bin and PREFIX.idx (Megatron's indexed dataset): one document of `count` random tokens below `vocab`."""
    rng = random.Random(seed)
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    with open(prefix + ".bin", "wb") as out:
        array.array("H", (rng.randrange(vocab) for _ in range(count))).tofile(out)
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2))
        out.write(struct.pack("<iqqq", count, 0, 0, 1))


def read_tokens(prefix):
    tokens = array.array("H")
    with open(prefix + ".bin", "rb") as f:
        tokens.frombytes(f.read())
    return tokens.tolist()


def run_ltrain(binary, recipe, run_dir, overrides, environment=None, taskset=None):
    """Trains from scratch in `run_dir`; returns the lines of metrics.jsonl."""
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [binary, "run", recipe, f"output_dir={run_dir}"] + overrides
    if taskset:
        command = ["taskset", "-c", taskset] + command
    done = subprocess.run(command, env=dict(os.environ, **(environment or {})), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    with open(os.path.join(run_dir, "metrics.jsonl")) as f:
        return [line for line in map(json.loads, f) if "step_time_ms" in line]


def rank_usage(run_dir):
    """What the ranks have used (logs/usage-*.json), by rank."""
    usage = {}
    for name in sorted(glob.glob(os.path.join(run_dir, "logs", "usage-*.json"))):
        with open(name) as f:
            entry = json.load(f)
        usage[entry["rank"]] = entry
    return usage


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def cpu_name():
    """Of /proc/cpuinfo; a name that says nothing gets family and model beside it."""
    fields = {}
    with open("/proc/cpuinfo") as f:
        for line in f:
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family', '?')} model {fields.get('model', '?')})"


def machine():
    load = os.getloadavg()
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "load_average": [round(v, 2) for v in load],
            "ltrain": commit()}


def commit():
    """Of this checkout; nothing in a pack."""
    if not shutil.which("git") or not os.path.exists(os.path.join(REPOSITORY, ".git")):
        return ""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, text=True,
                          stdout=subprocess.PIPE).stdout.strip()


def write_report(out_dir, name, title, commands, sections, record):
    """NAME_CPU_DATE.md in `out_dir` and NAME_CPU_DATE.json beside it, or in RESULTS where that is PAGES. `sections`:
    (heading, table rows with the header first, note)."""
    info = machine()
    slug = re.sub(r"[^a-z0-9]+", "-", info["cpu"].lower()).strip("-")
    base = os.path.join(out_dir, f"{name}_{slug}_{info['date'][:10]}")
    os.makedirs(out_dir, exist_ok=True)
    text = [f"# {title}", "",
            f"{info['cpu']}, {info['cores']} cores, Linux {info['kernel']}, {info['date']}; ltrain {info['ltrain']}; load "
            f"average at the end {info['load_average'][0]}.", "", "Made by:", "", "```"] + commands + ["```", ""]
    for heading, rows, note in sections:
        text += [f"## {heading}", ""]
        text += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
        text += ["| " + " | ".join(row) + " |" for row in rows[1:]]
        text += ["", note, ""] if note else [""]
    with open(base + ".md", "w") as out:
        out.write("\n".join(text).rstrip() + "\n")
    data = (os.path.join(RESULTS, os.path.basename(base)) if out_dir == PAGES else base) + ".json"
    with open(data, "w") as out:
        json.dump(dict(record, machine=info, commands=commands), out, indent=1)
        out.write("\n")
    print("\n".join(text))
    print(f"written: {os.path.relpath(base, REPOSITORY)}.md and {os.path.relpath(data, REPOSITORY)}", file=sys.stderr)
