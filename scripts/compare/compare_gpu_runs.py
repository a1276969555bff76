#!/usr/bin/env python3
"""Two runs of scripts/gpu-check.sh on the same card: what became slower, steps first, then ops.

Usage: compare_gpu_runs.py OLD/steps.jsonl NEW/steps.jsonl [--percent 2]. Exit code 1 where something is slower."""
import argparse
import json
import sys


def read(path):
    """Lines by name; of a name that comes twice the last one."""
    with open(path, encoding="utf-8") as lines:
        return {x["name"]: x for x in map(json.loads, lines)}


def slower(old, new, percent):
    """(what, old ms, new ms) of steps and ops that take more than `percent` % longer; ops below 0.2 ms a step are left out."""
    found = []
    for name in new:
        if name not in old:
            continue
        pairs = [(name, old[name]["step_ms"], new[name]["step_ms"])]
        for op, now in new[name].get("ops", {}).items():
            before = old[name].get("ops", {}).get(op)
            if before and max(before["ms"], now["ms"]) >= 0.2:
                pairs.append((f"{name}: {op}", before["ms"], now["ms"]))
        found += [p for p in pairs if p[2] > p[1] * (1 + percent / 100)]
    return found


def cards(lines):
    return {x["card"] for x in lines.values() if "card" in x}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("old")
    a.add_argument("new")
    a.add_argument("--percent", type=float, default=2)
    o = a.parse_args()
    old, new = read(o.old), read(o.new)
    if len(cards(old) | cards(new)) > 1:
        sys.exit(f"compare-gpu-runs: two cards: {', '.join(sorted(cards(old) | cards(new)))}; compare runs of one")
    missing = sorted(set(old) - set(new))
    if missing:
        print("not in the new run: " + ", ".join(missing))
    found = slower(old, new, o.percent)
    for what, before, now in found:
        print(f"slower: {what}: {before:.2f} -> {now:.2f} ms ({100 * (now / before - 1):+.1f} %)")
    print(f"{len(found)} slower by more than {o.percent:g} % of {len(set(old) & set(new))} measurements")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
