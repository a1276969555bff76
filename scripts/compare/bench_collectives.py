#!/usr/bin/env python3
"""Collectives between ranks of this host, through shared memory and through Gloo, alternating: medians by size.
Writes docs/measurements/bench-collectives_CPU_DATE.md. Two minutes on a quiet machine."""
# build: ltrain
import argparse
import json
import os
import statistics
import subprocess
import sys

import measure

TRANSPORTS = ["shm", "gloo"]


def size_text(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1 << 10 else f"{n} B"


def seconds_text(s):
    return f"{s * 1e6:.1f} µs" if s < 1e-3 else f"{s * 1e3:.2f} ms"


def measure_once(o, transport):
    command = [o.binary, "selftest", "collectives", "--ranks", str(o.ranks), "--ops", o.ops, "--seconds", str(o.seconds),
               "--smallest", str(o.smallest), "--largest", str(o.largest), "--groups", "20"]
    done = subprocess.run(command, env=dict(os.environ, LTRAIN_TRANSPORT=transport), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"LTRAIN_TRANSPORT={transport} {' '.join(command)}: exit code {done.returncode}")
    result = json.loads(done.stdout)
    if result["transport"] != transport:
        sys.exit(f"asked for {transport}, measured {result['transport']}")
    return result


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--ranks", type=int, default=2, help="of one thread each")
    a.add_argument("--ops", default="all_reduce,reduce_scatter,all_gather,send_recv")
    a.add_argument("--smallest", type=int, default=256, help="bytes")
    a.add_argument("--largest", type=int, default=64 << 20, help="bytes")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--seconds", type=float, default=0.3, help="for one size of one operation in one round")
    o = a.parse_args()
    times, groups = {}, {t: [] for t in TRANSPORTS}
    for i in range(o.rounds):
        for transport in TRANSPORTS if i % 2 == 0 else TRANSPORTS[::-1]:
            result = measure_once(o, transport)
            groups[transport].append(result["seconds_a_group"])
            for s in result["samples"]:
                times.setdefault((s["op"], s["bytes"]), {}).setdefault(transport, []).append(s)
        print(f"round {i + 1} of {o.rounds}", file=sys.stderr)
    sections, record = [], []
    for op in o.ops.split(","):
        rows = [["size", "shared memory", "Gloo", "Gloo ÷ shared memory"]]
        for (name, size), both in times.items():
            if name != op:
                continue
            cells, entry = [], {"op": op, "bytes": size}
            for t in TRANSPORTS:
                medians = [s["median"] for s in both[t]]
                entry[t] = {**measure.spread(medians), "low": min(s["low"] for s in both[t]),
                            "high": max(s["high"] for s in both[t])}
                cells.append(f"{seconds_text(entry[t]['median'])} ({seconds_text(min(medians))} to "
                             f"{seconds_text(max(medians))}), {size / entry[t]['median'] / 1e9:.2f} GB/s")
            entry["ratio"] = entry["gloo"]["median"] / entry["shm"]["median"]
            record.append(entry)
            rows.append([size_text(size), *cells, f"**{entry['ratio']:.1f}**"])
        sections.append((op, rows, ""))
    sections[-1] = (*sections[-1][:2], (
        f"{o.ranks} ranks of one thread. Each figure is the median (smallest to largest) of {o.rounds} rounds, alternating; a "
        f"round's is the median call of {o.seconds} s of calls, which start when all ranks are there. GB/s: bytes of the "
        "tensor (of the whole, where it is cut; of what one rank sends, for send_recv) over seconds. A group of all ranks "
        f"takes {seconds_text(statistics.median(groups['shm']))} to make in shared memory, "
        f"{seconds_text(statistics.median(groups['gloo']))} over Gloo."))
    measure.write_report(o.out, "bench-collectives", f"Collectives between {o.ranks} ranks of one host",
                         [("scripts/compare.sh bench-collectives " + " ".join(sys.argv[1:])).strip()], sections,
                         {"results": record, "seconds_a_group": groups})


main()
