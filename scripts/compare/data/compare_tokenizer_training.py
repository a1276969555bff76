#!/usr/bin/env python3
"""Compares what `ltrain tokenizer train` learns with BpeTrainer of Hugging Face's tokenizers, merge by merge.

Usage: scripts/compare/data/compare_tokenizer_training.py LTRAIN TEXT_FILE [--write FOLDER]
On the text, on parts of it as JSONL, on random strings and on runs of few characters, in which pairs are there equally
often and one token comes about in two ways; under each pattern, on one and on three threads. --write FOLDER: leaves a
small text and what tokenizers learns from it there instead, as tests/golden/tokenizers has them.
Needs `pip install tokenizers`. Exits with 1 at a difference.
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

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

spec = importlib.util.spec_from_file_location("json_script", pathlib.Path(__file__).with_name("compare_tokenizer_json.py"))
json_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(json_script)

OWN = r"[^\n]+|\n"
PATTERNS = {"gpt2": json_script.GPT2, "llama3": json_script.LLAMA3, "qwen2": json_script.QWEN2, "o200k": json_script.O200K,
            OWN: OWN}
SPECIALS = ["<|endoftext|>", "<pad>"]


def train(documents, name, vocab_size, min_frequency):
    t = Tokenizer(models.BPE())
    if name == "qwen2":
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = json_script.byte_level(PATTERNS[name])
    t.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def learned(text):
    model = json.loads(text)["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}


def corpora(text, rng):
    """Name, documents, vocabulary."""
    yield "text", [text], 3000
    yield "parts", text.split("\n\n"), 1500
    yield "random strings", json_script.strings(5000, rng), 1000
    runs = ["".join(rng.choice("-=a. \n") * rng.randint(1, 40) for _ in range(rng.randint(1, 20))) for _ in range(2000)]
    yield "runs", runs, 700
    yield "few", ["".join(rng.choices("ab", k=rng.randint(1, 12))) for _ in range(3000)], 900


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ltrain")
    p.add_argument("text")
    p.add_argument("--write")
    o = p.parse_args()
    with open(o.text, encoding="utf-8", newline="") as f:
        text = f.read()
    rng = random.Random(7)
    if o.write:
        texts = [t for t in json_script.strings(600, rng) if "\0" not in t][:200] + text[:12_000].split("\n\n")
        texts += ["-" * rng.randint(1, 30) + "=" * rng.randint(1, 9) for _ in range(60)]
        with open(os.path.join(o.write, "training.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
        result = learned(train(texts, "llama3", 700, 2).to_str())
        with open(os.path.join(o.write, "training.json"), "w", encoding="utf-8") as f:
            json.dump(result, f, ensure_ascii=False, separators=(",", ":"))
        return
    differ = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for label, documents, vocab_size in corpora(text, rng):
            documents = [d for d in documents if d]
            path = os.path.join(folder, "in.jsonl")
            with open(path, "w", encoding="utf-8") as f:
                f.writelines(json.dumps({"text": d}) + "\n" for d in documents)
            for name in PATTERNS:
                if name == OWN and label == "text":
                    continue  # whole lines as words
                for min_frequency, workers in ((2, 1), (5, 3)):
                    expected = learned(train(documents, name, vocab_size, min_frequency).to_str())
                    made = os.path.join(folder, f"made-{count}")
                    subprocess.run([o.ltrain, "tokenizer", "train", made, "--input", path, "--pattern", name,
                                    "--vocab-size", str(vocab_size), "--min-frequency", str(min_frequency), "--workers",
                                    str(workers), "--special-tokens", *SPECIALS, "--quiet"], check=True,
                                   stdout=subprocess.DEVNULL)
                    with open(os.path.join(made, "tokenizer.json"), encoding="utf-8") as f:
                        file = f.read()
                    same = learned(file) == expected and learned(Tokenizer.from_str(file).to_str()) == expected
                    count += 1
                    differ += not same
                    if not same:
                        at = next((i for i, (a, b) in enumerate(zip(expected["merges"], learned(file)["merges"])) if a != b), -1)
                        print(f"{label}, {name}, min-frequency {min_frequency}: differ from merge {at} on")
            print(f"{label}: {len(documents)} documents compared", flush=True)
    print(f"{differ} of {count} differ")
    sys.exit(1 if differ else 0)


main()
