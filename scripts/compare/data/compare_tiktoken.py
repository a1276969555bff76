#!/usr/bin/env python3
"""Compares what `ltrain tokenizer import` makes of a rank file with tiktoken, string by string.

Usage: scripts/compare/data/compare_tiktoken.py LTRAIN RANK_FILE [--count N] [--write FOLDER]
For each pattern that has a name, and one given as a regular expression: N (100,000) random and hostile strings with
special tokens in them. --write FOLDER: leaves few strings and their ids there instead, as tests/golden/tokenizers has
them of tests/golden/small.tiktoken. Needs `pip install tiktoken tokenizers`. Exits with 1 at a difference.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import tiktoken
from tokenizers import normalizers
from tiktoken.load import load_tiktoken_bpe

spec = importlib.util.spec_from_file_location("json_script", pathlib.Path(__file__).with_name("compare_tokenizer_json.py"))
json_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(json_script)

END = "<|endoftext|>"
OPENAI = {END: 1, "<|endofprompt|>": 20}  # distances from the last rank, as tiktoken's openai_public.py has them
LLAMA3 = {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|start_header_id|>": 6, "<|end_header_id|>": 7, "<|eom_id|>": 8,
          "<|eot_id|>": 9}  # from Llama's tokenizer.py
OWN = r"\p{L}+|\p{N}{1,3}|[^\p{L}\p{N}]+?"
PATTERNS = {  # name: pattern, special tokens, more options of the import
    "gpt2": (json_script.GPT2, {END: 0}),
    "cl100k": (json_script.LLAMA3, {**OPENAI, "<|fim_prefix|>": 2, "<|fim_middle|>": 3, "<|fim_suffix|>": 4}),
    "llama3": (json_script.LLAMA3, LLAMA3),
    "qwen2": (json_script.QWEN2, {END: 0, "<|im_start|>": 1, "<|im_end|>": 2}),
    "o200k": (json_script.O200K, OPENAI),
    OWN: (OWN, {"<end>": 0, "<begin>": 1}),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ltrain")
    p.add_argument("ranks")
    p.add_argument("--count", type=int, default=100_000)
    p.add_argument("--write")
    o = p.parse_args()
    ranks = load_tiktoken_bpe(o.ranks)
    rng = random.Random(7)
    texts = json_script.strings(o.count, rng)
    if o.write:
        texts = [t for t in texts if len(t) <= 80][:150]
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (pattern, distances) in PATTERNS.items():
            specials = {token: len(ranks) + n for token, n in distances.items()}
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
            label = name if name != OWN else "own"
            made = os.path.join(folder, label)
            given = ["--special-tokens", *specials] if name == OWN else []
            subprocess.run([o.ltrain, "tokenizer", "import", o.ranks, made, "--pattern", name, *given], check=True,
                           stdout=subprocess.DEVNULL)
            case_file = os.path.join(o.write or folder, f"tiktoken-{label}.cases.jsonl")
            with open(case_file, "w", encoding="utf-8") as f:
                for i, text in enumerate(texts):
                    if i % 5 == 0:
                        text = rng.choice(list(specials)).join([text, text[::-1], ""])
                    composed = normalizers.NFC().normalize_str(text) if name == "qwen2" else text
                    ids = encoding.encode(composed, allowed_special="all")
                    f.write(json.dumps({"text": text, "ids": ids, "decoded": encoding.decode(ids)}, ensure_ascii=False) + "\n")
            done = subprocess.run([o.ltrain, "tokenize", "--tokenizer", made, "--cases", case_file], capture_output=True, text=True)
            print(f"{label}: {(done.stdout or done.stderr).strip().replace(folder, '')}", flush=True)
            differ += done.returncode != 0
    print(f"{differ} of {len(PATTERNS)} differ")
    sys.exit(1 if differ else 0)


main()
