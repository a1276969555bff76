#!/usr/bin/env python3
"""Compares `ltrain data build --tokenizer gpt2` with tiktoken, document by document.

Usage: scripts/compare/data/compare_tokenizer.py LTRAIN RANK_FILE [TEXT_FILE ...]
Documents: the lines and the whole of each text file, every code point in several surroundings, random
strings of characters that the pattern treats apart, long runs. Needs `pip install tiktoken`. Exits with 1 at
a difference.
"""
import json
import random
import struct
import subprocess
import sys
import tempfile

import tiktoken
from tiktoken.load import load_tiktoken_bpe

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
ALPHABET = list("abctserlvdm'' \t\n\r09.,!_-éß日本ʼ’"
                "\u0301\u200b\u00a0\u0085\u3000\u2009²½Ⅷ😀👍🏽ſİ\u0660\ufeff\x00\x1c")


def code_points():
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            c = chr(c)
            yield f"a{c}b {c}c 1{c}2  {c} {c}{c}\n{c}'s"


def random_strings(n):
    rng = random.Random(1234)
    for _ in range(n):
        yield "".join(rng.choices(ALPHABET, k=rng.randint(1, 60)))


def long_runs():
    for s in ("a", " ", "\n", "!", "1", "ab", "é", "aB1 ", "-=", "😀"):
        yield s * (100_000 // len(s))
    yield "a" * 1_000_000
    yield "a b" * 300_000


def read_documents(prefix):
    with open(prefix + ".idx", "rb") as f:
        head = f.read(34)
        magic, version, code, s, d = struct.unpack("<9sQBQQ", head)
        assert magic == b"MMIDIDX\0\0" and version == 1 and code == 8 and d == s + 1
        lengths = struct.unpack(f"<{s}i", f.read(4 * s))
    with open(prefix + ".bin", "rb") as f:
        for n in lengths:
            yield list(struct.unpack(f"<{n}H", f.read(2 * n)))


def compare(ltrain, ranks, name, documents, encoding):
    documents = [d for d in documents if d]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/in.jsonl"
        with open(path, "w") as f:
            f.writelines(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents)
        subprocess.run([ltrain, "data", "build", "--input", path, "--output", folder + "/out",
                        "--tokenizer", "gpt2", "--ranks", ranks, "--no-append-eot", "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)
        differences = count = 0
        for want, got in zip(documents, read_documents(folder + "/out"), strict=True):
            count += len(got)
            expected = encoding.encode_ordinary(want)
            if got != expected:
                differences += 1
                if differences <= 5:
                    print(f"{name}: {want[:80]!r}: {got[:20]} but tiktoken has {expected[:20]}")
    print(f"{name}: {len(documents)} documents, {count} tokens, {differences} differences")
    return differences


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    ltrain, ranks, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    mergeable = load_tiktoken_bpe(ranks)
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=mergeable, special_tokens={})
    texts = [open(f, encoding="utf-8").read() for f in files]
    differences = compare(ltrain, ranks, "files", texts, encoding)
    differences += compare(ltrain, ranks, "lines", [x for t in texts for x in t.splitlines(True)], encoding)
    differences += compare(ltrain, ranks, "random", random_strings(200_000), encoding)
    differences += compare(ltrain, ranks, "long runs", long_runs(), encoding)
    differences += compare(ltrain, ranks, "code points", code_points(), encoding)
    sys.exit(1 if differences else 0)


main()
