#!/usr/bin/env python3
"""Compares `ltrain tokenize --tokenizer tekken.json` with mistral-common's Tekkenizer, string by string.

Usage: scripts/compare/data/compare_tekken.py LTRAIN [FILE ...] [--count N] [--write FOLDER]
FILE: tekken.json files; default: those that the package mistral-common ships, and a small one of
tests/golden/small.tiktoken. N (100,000) random and hostile strings, special tokens as text among them.
--write FOLDER: leaves the small one and few strings there instead, as tests/golden/tokenizers has them.
Needs `pip install mistral-common tokenizers`. Exits with 1 at a difference.
"""
import argparse
import base64
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import mistral_common
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

HERE = pathlib.Path(__file__)
spec = importlib.util.spec_from_file_location("json_script", HERE.with_name("compare_tokenizer_json.py"))
json_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(json_script)

PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
           r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARKS = ["<s>", "</s>", "[INST]", "[/INST]", "<unk>", "<SPECIAL_25>"]


def small():
    """tests/golden/small.tiktoken, its bytes first and in order, as a tekken.json; some of its last tokens left out."""
    tokens = []
    for line in (HERE.resolve().parents[3] / "tests/golden/small.tiktoken").read_text().splitlines():
        tokens.append(base64.b64decode(line.split()[0]))
    tokens = [bytes([b]) for b in range(256)] + [t for t in tokens if len(t) > 1]
    vocab = []
    for i, t in enumerate(tokens):
        try:
            shown = t.decode()
        except UnicodeDecodeError:
            shown = None
        vocab.append({"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": shown})
    return {"config": {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": 30 + len(vocab) - 4,
                       "default_num_special_tokens": 30, "version": "v3"},
            "vocab": vocab}


def cases(t, texts, rng):
    for i, text in enumerate(texts):
        if i % 5 == 0:
            text = rng.choice(MARKS).join([text, text[::-1], ""])
        ids = t.encode(text, bos=False, eos=False)
        case = {"text": text, "ids": ids}
        decoded = t.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP)
        if "\ufffd" not in decoded:
            case["decoded"] = decoded
        yield json.dumps(case, ensure_ascii=False) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ltrain")
    p.add_argument("files", nargs="*")
    p.add_argument("--count", type=int, default=100_000)
    p.add_argument("--write")
    o = p.parse_args()
    rng = random.Random(11)
    texts = json_script.strings(o.count, random.Random(7))
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(o.write or folder, "small-tekken.json")
        with open(made, "w", encoding="utf-8") as f:
            json.dump(small(), f, ensure_ascii=False, separators=(",", ":"))
        shipped = sorted(str(f) for f in pathlib.Path(mistral_common.__file__).parent.glob("data/tekken*.json"))
        if o.write:
            texts = [t for t in texts if len(t) <= 80][:150]
            shipped = []
        for path in o.files or [made, *shipped]:
            t = Tekkenizer.from_file(path)
            case_file = os.path.join(o.write or folder, "small-tekken.cases.jsonl")
            with open(case_file, "w", encoding="utf-8") as f:
                f.writelines(cases(t, texts, rng))
            done = subprocess.run([o.ltrain, "tokenize", "--tokenizer", path, "--cases", case_file], capture_output=True,
                                  text=True)
            print(f"{os.path.basename(path)}: {(done.stdout or done.stderr).strip().replace(folder, '')}", flush=True)
            differ += done.returncode != 0
            bos = t.encode("x", bos=True, eos=False)
            done = subprocess.run([o.ltrain, "tokenize", "--tokenizer", path, "--special-tokens", "x"], capture_output=True,
                                  text=True)
            if done.stdout.split() != [str(i) for i in bos]:
                print(f"{os.path.basename(path)}: <s> before a text: {done.stdout or done.stderr}, expected {bos}")
                differ += 1
    print(f"{differ} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
