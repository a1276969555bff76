#!/usr/bin/env python3
"""How long `ltrain import` and `ltrain export` take beside copying the same files, and what memory they need.
Writes docs/measurements/compare-weights_CPU_DATE.md. Needs: build/ (scripts/build.sh), a quiet machine, and for
the 1B shape 13 GB of disk; --shape tiny for a look."""
# build: ltrain
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

import compare_generation
import measure


def seconds_and_memory(*command):
    """Wall time and the most resident memory in bytes."""
    os.sync()  # writes of earlier commands do not count
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: {said}")
    return time.monotonic() - begin, usage.ru_maxrss * 1024


def copied(source, to):
    """cp, and the files on the disk, as import and export leave them."""
    os.sync()
    begin = time.monotonic()
    subprocess.run(["cp", "-r", source, to], check=True)
    subprocess.run(["sync", *(os.path.join(to, f) for f in os.listdir(to))], check=True)
    return time.monotonic() - begin


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--shape", choices=compare_generation.SHAPES, default="1b")
    a.add_argument("--rounds", type=int, default=5)
    o = a.parse_args()
    times, memory = {"copy": [], "import": [], "export": []}, {"import": 0, "export": 0}
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "hf")
        os.mkdir(source)
        size = compare_generation.write_model(source, o.shape) * 2
        checkpoint, made = os.path.join(folder, "checkpoint"), os.path.join(folder, "made")
        seconds_and_memory(o.binary, "import", source, checkpoint)
        for turn in range(o.rounds * len(times)):
            # Each comes first, second and third: fresh memory and a disk that is behind cost whoever is next.
            name = list(times)[(turn + turn // len(times)) % len(times)]
            if name == "copy":
                times[name].append(copied(source, made))
            else:
                seconds, most = seconds_and_memory(o.binary, name, source if name == "import" else checkpoint, made)
                times[name].append(seconds)
                memory[name] = max(memory[name], most)
            shutil.rmtree(made)
    record = {"bytes": size, "shape": o.shape, "peak_bytes": memory}
    rows = [["", "seconds, median (least to most)", "GB/s", "of copying", "memory, MB"]]
    for name, values in times.items():
        s = record[name] = measure.spread(values)
        rows.append([f"ltrain {name}" if name in memory else "cp, sync", f"{s['median']:.2f} ({s['min']:.2f} to {s['max']:.2f})",
                     f"{size / s['median'] / 1e9:.2f}", f"{s['median'] / record['copy']['median']:.2f}",
                     f"{memory[name] / 1e6:.0f}" if name in memory else ""])
    measure.write_report(o.out, "compare-weights", "Import and export beside a copy of the files",
                         ["scripts/compare.sh weights " + " ".join(sys.argv[1:])],
                         [(f"A Hugging Face folder of {size / 1e9:.2f} GB in bf16, one file", rows,
                           "Files are in the page cache before they are read; all three leave them on the disk.")], record)


if __name__ == "__main__":
    main()
