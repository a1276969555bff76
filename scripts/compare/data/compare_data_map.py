#!/usr/bin/env python3
"""`ltrain data build` from Parquet beside datasets.map with a fast tokenizer, on as many processes: seconds from the file
to token ids on disk, alternating; the ids must be the same. Writes docs/measurements/compare-data-map_CPU_DATE.md.
Ten minutes on a quiet machine. Usage: scripts/compare.sh data-map --tokenizer TOKENIZER_JSON TEXT_FILE..."""
# build: ltrain
# packages: datasets==5.0.0 transformers==5.24.0 pyarrow
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import measure

PEER = """
import sys, time, json, hashlib
import numpy as np
path, tokenizer, processes, cache = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
import datasets
from transformers import PreTrainedTokenizerFast
datasets.disable_progress_bars()
begin = time.perf_counter()
fast = PreTrainedTokenizerFast(tokenizer_file=tokenizer)
data = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=cache)
ids = data.map(lambda rows: {"ids": fast(rows["text"], add_special_tokens=False)["input_ids"]}, batched=True,
               remove_columns=data.column_names, num_proc=processes)
seconds = time.perf_counter() - begin
digest = hashlib.sha256()
count = 0
for row in ids.with_format("numpy").iter(1000):
    for values in row["ids"]:
        digest.update(np.asarray(values, dtype=np.uint16).tobytes()); count += len(values)
print(json.dumps({"seconds": seconds, "digest": digest.hexdigest(), "tokens": count}))
"""


def texts_of(paths, megabytes):
    """Documents of about 2 kB of the files, again until there are `megabytes`."""
    whole = "".join(open(p, encoding="utf-8").read() for p in paths)
    pieces = [whole[i:i + 2000] for i in range(0, len(whole), 2000)]
    size = sum(len(p.encode()) for p in pieces)
    out, total, turn = [], 0, 0
    while total < megabytes * 1e6:
        # A number before each, so that no cache of whole texts helps.
        out += [f"{turn} {p}" for p in pieces]
        total += size
        turn += 1
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("text", nargs="+")
    a.add_argument("--tokenizer", required=True, help="tokenizer.json")
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--megabytes", type=int, default=100)
    a.add_argument("--processes", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=3)
    o = a.parse_args()
    import pyarrow as pa
    import pyarrow.parquet as pq
    texts = texts_of(o.text, o.megabytes)
    total = sum(len(t.encode()) for t in texts)
    this, other = [], []
    with tempfile.TemporaryDirectory() as scratch:
        corpus, made, cache = (os.path.join(scratch, n) for n in ("corpus.parquet", "out", "cache"))
        pq.write_table(pa.table({"text": texts}), corpus, compression="snappy", row_group_size=10000)

        def ltrain():
            begin = time.perf_counter()
            subprocess.run([o.binary, "data", "build", "--input", corpus, "--output", made, "--tokenizer", o.tokenizer,
                            "--no-append-eot", "--force", "--quiet", "--workers", str(o.processes)], check=True,
                           stdout=subprocess.DEVNULL)
            return time.perf_counter() - begin

        def peer():
            shutil.rmtree(cache, ignore_errors=True)
            done = subprocess.run([sys.executable, "-c", PEER, corpus, o.tokenizer, str(o.processes), cache], check=True,
                                  text=True, stdout=subprocess.PIPE,
                                  env=dict(os.environ, TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1"))
            return json.loads(done.stdout.splitlines()[-1])

        ltrain()
        with open(made + ".bin", "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        for _ in range(o.rounds):
            this.append(total / ltrain() / 1e6)
            result = peer()
            if result["digest"] != digest:
                sys.exit("the ids differ")
            other.append(total / result["seconds"] / 1e6)
            print(f"ltrain {this[-1]:.1f} MB/s, datasets.map {other[-1]:.1f} MB/s", file=sys.stderr)
    ours, theirs = measure.spread(this), measure.spread(other)
    rate = lambda s: f"{s['median']:.1f} ({s['min']:.1f} to {s['max']:.1f})"
    note = (f"{total / 1e6:.1f} MB of UTF-8 text in {len(texts)} rows of Parquet (snappy), {o.processes} processes or threads. "
            "`data build` is timed whole, as a process. datasets.map is timed from load_dataset to its end, without the start of "
            "Python and its imports, with `batched=True` and PreTrainedTokenizerFast. Both alternate; medians, least and most. "
            "The ids are the same.")
    measure.write_report(o.out, "compare-data-map", "Token files from Parquet beside datasets.map",
                         ["scripts/compare.sh data-map --tokenizer tokenizer.json TEXT..."],
                         [("From Parquet to token ids", [["data build, MB/s", "datasets.map, MB/s", "ratio"],
                                                         [rate(ours), rate(theirs), f"{ours['median'] / theirs['median']:.2f}"]], note)],
                         {"this": this, "other": other, "bytes": total, "processes": o.processes})


if __name__ == "__main__":
    main()
