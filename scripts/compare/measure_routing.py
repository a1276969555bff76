#!/usr/bin/env python3
"""A cache of routing decisions: how often a token's last experts are there, and are its experts again (docs/claims.md)."""
# build: ltrain
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

import measure

RECIPE = os.path.join("recipes", "moe.yaml")


class Cache:
    """The last decisions of the `size` tokens that were used last."""

    def __init__(self, size):
        self.size, self.entries = size, collections.OrderedDict()
        self.seen = self.hits = self.first = self.all = 0

    def use(self, token, experts):
        self.seen += 1
        cached = self.entries.pop(token, None)
        if cached is not None:
            self.hits += 1
            self.first += cached[0] == experts[0]
            self.all += set(cached) == set(experts)
        self.entries[token] = experts
        if len(self.entries) > self.size:
            self.entries.popitem(last=False)


def replayed(record, size):
    """One cache for each layer, over the tokens of a record of `ltrain eval --routing` in their order."""
    caches, tokens = {}, []
    with open(record, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            tokens = line.get("tokens", tokens)
            cache = caches.setdefault(line["layer"], Cache(size))
            for token, experts in zip(tokens, line["top_indices"]):
                cache.use(token, experts)
    return caches


def call(*command):
    done = subprocess.run(command, cwd=measure.REPOSITORY, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--text", required=True, help="a text file to train on; its last twentieth is held out")
    a.add_argument("--vocab-size", type=int, default=4096)
    a.add_argument("--steps", type=int, default=600)
    a.add_argument("--sizes", type=int, nargs="+", default=[128, 1024, 4096])
    o = a.parse_args()
    binary = os.path.abspath(o.binary)
    with tempfile.TemporaryDirectory() as scratch:
        at = lambda name: os.path.join(scratch, name)
        call(binary, "tokenizer", "train", at("tokenizer"), "--input", os.path.abspath(o.text), "--vocab-size",
             str(o.vocab_size), "-q")
        call(binary, "data", "build", "-q", "--tokenizer", at("tokenizer"), "--input", os.path.abspath(o.text),
             "--split", "95,5", "--output", at("text"))
        call(binary, "run", RECIPE, f"output_dir={at('run')}", f"data.train=[{{path: {at('text-train')}}}]",
             f"data.eval=[{{path: {at('text-val')}}}]", f"model.vocab_size={o.vocab_size}",
             f"data.tokenizer={{kind: huggingface, path: {at('tokenizer')}}}", f"train.train_steps={o.steps}",
             "checkpoint.save_interval=0")
        call(binary, "eval", at("run"), "--routing", at("record.jsonl"))
        print(f"{RECIPE}, {o.vocab_size} tokens, {o.steps} steps; held-out text in its order")
        print("| decisions kept | layer | tokens | found | same first expert | same experts |")
        print("|---|---|---|---|---|---|")
        for size in o.sizes:
            for layer, c in sorted(replayed(at("record.jsonl"), size).items()):
                share = lambda n: f"{100 * n / max(c.hits, 1):.1f} %"
                print(f"| {size} | {layer} | {c.seen} | {100 * c.hits / c.seen:.1f} % | {share(c.first)} | "
                      f"{share(c.all)} |")


if __name__ == "__main__":
    main()
