#!/usr/bin/env python3
"""Compares `ltrain tokenize --tokenizer FILE.model` with the sentencepiece library, string by string.

Usage: scripts/compare/data/compare_sentencepiece.py LTRAIN TEXT_FILE [--count N] [--only NAME] [--write FOLDER]
Trains small models of each kind on the text, and compares ids and decoded text of N (100,000) random and hostile strings
for each. --write FOLDER: leaves GOLDEN's models there with few strings instead, as tests/golden/tokenizers has them.
Needs `pip install sentencepiece tokenizers`. Exits with 1 at a difference.
"""
import argparse
import importlib.util
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import sentencepiece

spec = importlib.util.spec_from_file_location("json_script", pathlib.Path(__file__).with_name("compare_tokenizer_json.py"))
json_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(json_script)

GOLDEN = ("bpe-bytes", "bpe-symbols", "unigram-rules", "unigram-bytes")  # --write
SYMBOLS = ["<sep>", "New▁York", "the", "ab", "abc", "日本", "<x y>"]
# Replacements by code points, for a golden file: the library's own tables have a quarter of a megabyte.
RULES = [("½", "1/2"), ("Ａ", "A"), ("e\u0301", "é"), ("\u3000", " "), ("\u200b", ""), ("\t", " "), ("\n", " "), ("…", "..."),
         ("´", " \u0301"), ("aa", "b "), ("ﬁ", "fi"), ("Ⅷ", "VIII")]
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS = {
    "bpe-bytes": {"model_type": "bpe", "byte_fallback": True, **PLAIN},
    "bpe-no-prefix": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, **PLAIN},
    "bpe-symbols": {"model_type": "bpe", "user_defined_symbols": SYMBOLS, "control_symbols": ["<ctl>"], **PLAIN},
    "bpe-over-spaces": {"model_type": "bpe", "split_by_whitespace": False, "byte_fallback": True, **PLAIN},
    "bpe-nmt": {"model_type": "bpe", "user_defined_symbols": SYMBOLS},
    "unigram-nmt": {"model_type": "unigram"},
    "unigram-nfkc-cf": {"model_type": "unigram", "normalization_rule_name": "nfkc_cf", "byte_fallback": True,
                        "user_defined_symbols": SYMBOLS},
    "unigram-rules": {"model_type": "unigram", "rules": True,
                      "user_defined_symbols": ["<sep>", "the", "ab", "abc", "日本"]},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": False, **PLAIN},
    "unigram-spaces": {"model_type": "unigram", "allow_whitespace_only_pieces": True, "split_by_whitespace": False, **PLAIN},
}


def train(text, options, folder):
    options = dict(options)
    if options.pop("rules", False):
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w", encoding="utf-8") as f:
            for before, after in RULES:
                f.write("\t".join(" ".join(f"{ord(c):x}" for c in s) for s in (before, after)) + "\n")
        options["normalization_rule_tsv"] = path
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=700 if options.get("byte_fallback") else 450,
        character_coverage=0.999, hard_vocab_limit=False, num_threads=1, minloglevel=2, **options)
    return model.getvalue()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ltrain")
    p.add_argument("text")
    p.add_argument("--count", type=int, default=100_000)
    p.add_argument("--only")
    p.add_argument("--write")
    o = p.parse_args()
    text = open(o.text, encoding="utf-8").read()[:200_000].split("\n") + ["naïve café 日本語 日本 \u0301 ½ 1234"] * 5
    rng = random.Random(7)
    texts = json_script.strings(o.count, rng)
    words = open(o.text, encoding="utf-8").read().split(" ")
    for i in range(2, len(texts), 3):  # and plain text, with what is special in it
        at = rng.randrange(len(words) - 60)
        part = words[at:at + rng.randint(1, 60)]
        part.insert(rng.randrange(len(part) + 1), rng.choice([*SYMBOLS, "<s>", "<unk>", "<ctl>", "", "New York", "aaa", "…½"]))
        texts[i] = " ".join(part)
    texts[1] = " ".join(words[:100_000])  # whose scores sum up beyond what single precision can add a word to
    if o.write:
        texts = [t for t in texts if len(t) <= 80][:150]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, options in KINDS.items():
            if (o.only and name != o.only) or (o.write and name not in GOLDEN):
                continue
            where = o.write or folder
            path, case_file = os.path.join(where, name + ".model"), os.path.join(where, name + ".cases.jsonl")
            with open(path, "wb") as f:
                f.write(train(text, options, folder))
            processor = sentencepiece.SentencePieceProcessor(model_file=path)
            with open(case_file, "w", encoding="utf-8") as f:
                for case in texts:
                    ids = processor.encode(case)
                    line = {"text": case, "ids": ids}
                    decoded = processor.decode(ids)
                    if "\ufffd" not in decoded:  # ltrain gives the bytes
                        line["decoded"] = decoded
                    f.write(json.dumps(line, ensure_ascii=False) + "\n")
            done = subprocess.run([o.ltrain, "tokenize", "--tokenizer", path, "--cases", case_file], capture_output=True,
                                  text=True)
            print(f"{name}: {(done.stdout or done.stderr).strip().replace(where, '')}", flush=True)
            if done.returncode:
                failed.append(name)
    print(f"{len(failed)} models differ{': ' if failed else ''}{', '.join(failed)}")
    sys.exit(1 if failed else 0)


main()
