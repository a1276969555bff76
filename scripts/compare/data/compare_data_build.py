#!/usr/bin/env python3
"""`ltrain data build` and `ltrain tokenizer train` beside Hugging Face's tokenizers and sentencepiece on as many threads:
MB/s, alternating; ids and merges must be the same, or this fails. Writes
docs/measurements/compare-data-build_CPU_DATE.md. Ten minutes on a quiet machine.
Usage: scripts/compare.sh data-build --ranks GPT2_RANK_FILE TEXT_FILE_OR_FOLDER...
Needs `pip install tokenizers sentencepiece`; PYTHON=... names the Python that has it."""
# build: ltrain
import argparse
import array
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import measure

DOCUMENT = 20_000  # characters, at most
NAMES = {"gpt2": "byte-level BPE, pattern of GPT-2", "llama3": "byte-level BPE, pattern of Llama-3",
         "llama2": "BPE of characters with byte fallback, as Llama-2's", "unigram": "SentencePiece model, unigram, nmt_nfkc"}
PATTERNS = ("gpt2", "llama3")  # split patterns in the training of tokenizers


def documents(paths, megabytes, rng):
    """UTF-8 text of the files, in documents of at most DOCUMENT characters and in random order."""
    files = []
    for path in paths:
        for folder, _, names in os.walk(path):
            files += [os.path.join(folder, name) for name in names]
        if os.path.isfile(path):
            files.append(path)
    files.sort()
    rng.shuffle(files)
    total, parts = 0, []
    for name in files:
        try:
            with open(name, encoding="utf-8") as f:
                text = f.read(4_000_000)
        except (UnicodeDecodeError, OSError):
            continue
        if "\0" in text:
            continue
        for at in range(0, len(text), DOCUMENT):
            parts.append(text[at:at + DOCUMENT])
            total += len(parts[-1].encode())
        if total > megabytes * 1_000_000:
            break
    rng.shuffle(parts)
    return parts, total


def train_llama2(texts, path):
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    words = ("▁" + word for text in texts for word in text.split(" "))  # no merge over a space, as SentencePiece trains
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    plain = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    plain.train_from_iterator(words, trainers.BpeTrainer(vocab_size=32000, special_tokens=special, show_progress=False,
                                                         limit_alphabet=2000))
    t.model = plain.model
    t.save(path)


def train_unigram(texts, path):
    import sentencepiece
    lines = (line for text in texts for line in text.split("\n") if line.strip())
    with open(path, "wb") as f:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=f, model_type="unigram", vocab_size=8000,
                                                 hard_vocab_limit=False, minloglevel=2)


def read(corpus):
    with open(corpus, encoding="utf-8") as f:
        return [json.loads(line)["text"] for line in f]


def encode(tokenizer, corpus, threads, digest):
    """Run in a process of its own: seconds that the peer takes for the encoding alone."""
    texts = read(corpus)
    if tokenizer.endswith(".model"):
        import sentencepiece
        t = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
        size, batch = t.vocab_size(), lambda part: t.encode(part, num_threads=threads)
    else:
        from tokenizers import Tokenizer
        t = Tokenizer.from_file(tokenizer)
        size, batch = t.get_vocab_size(), lambda part: t.encode_batch_fast(part, add_special_tokens=False)
    code = "H" if size <= 65500 else "i"
    seconds, hashed = 0.0, hashlib.sha256()
    for at in range(0, len(texts), 1000):
        begin = time.perf_counter()
        encoded = batch(texts[at:at + 1000])
        seconds += time.perf_counter() - begin
        if digest:
            for e in encoded:
                hashed.update(array.array(code, e if isinstance(e, list) else e.ids).tobytes())
    print(json.dumps({"seconds": seconds, "digest": hashed.hexdigest()}))


def train(tokenizer, corpus, vocab_size):
    """Run in a process of its own: seconds that tokenizers takes to learn merges for the pattern of a tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    given = Tokenizer.from_file(tokenizer)
    t = Tokenizer(models.BPE())  # without the added tokens of `given`, which tokenizers would cut out of the text
    t.pre_tokenizer = given.pre_tokenizer
    if given.normalizer is not None:
        t.normalizer = given.normalizer
    texts = read(corpus)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    begin = time.perf_counter()
    t.train_from_iterator(texts, trainer)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "merges": json.loads(t.to_str())["model"]["merges"]}))


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("text", nargs="*")
    a.add_argument("--ranks", help="GPT-2's tiktoken file")
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--megabytes", type=int, default=50)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--only", default="")
    a.add_argument("--vocab-size", type=int, default=32768, help="of training")
    a.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    o = a.parse_args()
    if o.peer:
        task, tokenizer, corpus = o.peer
        return train(tokenizer, corpus, o.vocab_size) if task == "train" else encode(tokenizer, corpus, o.threads, task == "digest")
    if not o.text or not o.ranks:
        a.error("give --ranks and text files or folders")
    results, training = [], []
    with tempfile.TemporaryDirectory() as scratch:
        texts, total = documents(o.text, o.megabytes, random.Random(1))
        corpus = os.path.join(scratch, "corpus.jsonl")
        with open(corpus, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)

        def ltrain(tokenizer):
            done = subprocess.run([o.binary, "data", "build", "--input", corpus, "--output", os.path.join(scratch, "out"),
                                   "--tokenizer", tokenizer, "--no-append-eot", "--force", "--json", "--quiet", "--workers",
                                   str(o.threads)], check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout)["seconds"]

        def peer(tokenizer, task="encode"):
            done = subprocess.run([sys.executable, __file__, "--peer", task, tokenizer, corpus, "--threads", str(o.threads),
                                   "--vocab-size", str(o.vocab_size)], check=True, text=True, stdout=subprocess.PIPE,
                                  env=dict(os.environ, RAYON_NUM_THREADS=str(o.threads), TOKENIZERS_PARALLELISM="true"))
            return json.loads(done.stdout)

        def compare(title, this_seconds, other_seconds):
            this, other = [], []
            for _ in range(o.rounds):
                this.append(total / this_seconds() / 1e6)
                other.append(total / other_seconds() / 1e6)
            r = {"tokenizer": title, "this": measure.spread(this), "other": measure.spread(other), "runs": [this, other]}
            r["ratio"] = r["this"]["median"] / r["other"]["median"]
            print(f"{title}: {r['ratio']:.2f}", file=sys.stderr)
            return r

        def ltrain_train(name, made):
            shutil.rmtree(made, ignore_errors=True)
            begin = time.perf_counter()
            subprocess.run([o.binary, "tokenizer", "train", made, "--input", corpus, "--pattern", name, "--vocab-size",
                            str(o.vocab_size), "--workers", str(o.threads), "--quiet"], check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - begin

        for name, title in NAMES.items():
            if o.only not in name:
                continue
            folder = os.path.join(scratch, name)
            path = os.path.join(folder, "tokenizer.json")
            if name == "llama2":
                os.mkdir(folder)
                train_llama2(texts[:500], path)
            elif name == "unigram":
                path = os.path.join(scratch, "unigram.model")
                train_unigram(texts[:100], path)
            else:
                subprocess.run([o.binary, "tokenizer", "import", o.ranks, folder, "--pattern", name], check=True,
                               stdout=subprocess.DEVNULL)
            ltrain(path)
            with open(os.path.join(scratch, "out.bin"), "rb") as f:
                if hashlib.sha256(f.read()).hexdigest() != peer(path, "digest")["digest"]:
                    sys.exit(f"{name}: the ids differ")
            results.append(compare(title, lambda: ltrain(path), lambda: peer(path)["seconds"]))
            if name not in PATTERNS:
                continue
            made = os.path.join(scratch, "made")
            ltrain_train(name, made)
            with open(os.path.join(made, "tokenizer.json"), encoding="utf-8") as f:
                if json.load(f)["model"]["merges"] != peer(path, "train")["merges"]:
                    sys.exit(f"{name}: the merges differ")
            training.append(compare(f"pattern of {name}", lambda: ltrain_train(name, made),
                                    lambda: peer(path, "train")["seconds"]))
    rate = lambda s: f"{s['median']:.1f} ({s['min']:.1f} to {s['max']:.1f})"
    table = lambda first, list: [first] + [[r["tokenizer"], rate(r["this"]), rate(r["other"]), f"{r['ratio']:.2f}"] for r in list]
    import tokenizers
    note = (f"{total / 1e6:.1f} MB of UTF-8 text in {len(texts)} JSONL records, {o.threads} threads each. `data build` is "
            "timed whole: loading the tokenizer, reading, parsing JSON, encoding, writing. Of tokenizers "
            f"{tokenizers.__version__} `encode_batch_fast` alone is timed, on 1000 texts a call that are in memory already; "
            "beside the SentencePiece model that is `encode` of its library. Both alternate; medians, least and most. The ids "
            "are the same.")
    note_training = (f"{o.vocab_size} tokens of the same text, {o.threads} threads each. `ltrain tokenizer train` is timed whole, "
                     "as a process; of tokenizers `train_from_iterator` alone, on texts in memory. The merges are the same.")
    measure.write_report(o.out, "compare-data-build", "Tokenizers beside Hugging Face's and SentencePiece's",
                         ["scripts/compare.sh data-build --ranks gpt2.tiktoken TEXT..."],
                         [("Text to tokens", table(["tokenizer", "data build, MB/s", "peer, MB/s", "ratio"], results), note),
                          ("Merges from text", table(["tokenizer", "tokenizer train, MB/s", "tokenizers, MB/s", "ratio"],
                                                     training), note_training)],
                         {"results": results, "training": training, "bytes": total, "threads": o.threads})


main()
