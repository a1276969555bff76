#!/usr/bin/env python3
"""Compares `ltrain tokenize --tokenizer FILE` with Hugging Face's tokenizers, string by string.

Usage: scripts/compare/data/compare_tokenizer_json.py LTRAIN TEXT_FILE [--count N] [--only NAME] [--write FOLDER]
Trains small tokenizers of each supported kind on the text, and compares ids and decoded text of N (100,000) random and
hostile strings for each, and again with special tokens as text. --write FOLDER: leaves GOLDEN's tokenizers there with few
strings instead, as tests/golden/tokenizers has them; a tokenizer that is there is not trained again. Needs `pip install tokenizers`. Exits with 1 at a difference.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GOLDEN = ("gpt2", "llama3", "qwen2", "lowercase-added", "llama2", "metaspace-first", "added-inside")  # --write
SPLIT_GOLDEN = ("llama3", "lowercase-added", "added-inside")  # --write, special tokens as text
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")

ALPHABET = list("abctserlvdmABS'' \t\n\r09.,!_-/#$éßÉ日本ʼ’ﬁĳ"
                "\u0301\u0308\u200b\u200d\u00a0\u0085\u3000\u2009\u180e²½Ⅷ😀👍🏽ſİΣςK\u0660\ufeff\u07fd\U00010787\u0334\x00\x1c▁\u0958\uac01\u1100\u1161")
WORDS = ["the", " the", "  ", "\n\n", "'s", "'LL", "'ſ", "1234", " 3.14", "<|end|>", "<mask>", "[PAD]", "<s>", "</s>", "New York",
         "new york", "▁▁", "<0x41>", "e\u0301", "Ａ", "…", "\r\n", "!!\n", "//\n", "don't", "DON'T", "日本語", "naïve"]


def code_points():
    """All assigned in Python's Unicode, in several surroundings."""
    for c in range(0x110000):
        if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"):
            yield chr(c)


def strings(count, rng):
    points = list(code_points())
    out = ["", " ", "a", "\u0301", " \u0301", "a" * 3000, " " * 3000, "1" * 3000, "日" * 1000, "\n" * 1000, "ab " * 1000,
           "<|end|>" * 20, "x<mask>", " <mask> x", "a\u0301" * 500, "\u0301" * 200]
    while len(out) < count:
        kind = rng.random()
        if kind < 0.4:
            s = "".join(rng.choices(ALPHABET, k=rng.randint(1, 40)))
        elif kind < 0.7:
            s = "".join(rng.choice(WORDS) if rng.random() < 0.4 else rng.choice(ALPHABET) for _ in range(rng.randint(1, 20)))
        elif kind < 0.9:
            c = rng.choice(points)
            s = rng.choice(["{}", "a{}", " {}", "{}a", "a{}1", "{0}{0}", " {} ", "'{}", "!{}\n", "{}\u0301"]).format(c)
        else:
            s = "".join(rng.choices(points, k=rng.randint(1, 30)))
        out.append(s)
    return out[:count]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(pattern=None, prefix=False):
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True)
    parts = [split(p) for p in (pattern if isinstance(pattern, list) else [pattern])]
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])


SPECIALS = [AddedToken("<|end|>", special=True), AddedToken("<s>", special=True), AddedToken("<mask>", lstrip=True, special=True),
            AddedToken("[PAD]", rstrip=True, special=True)]


def train(text, pre, size=400, normalizer=None, decoder=None, bytes_first=True, added=SPECIALS, **options):
    t = Tokenizer(models.BPE(**options))
    if pre:
        t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoder or decoders.ByteLevel()
    first = [options["unk_token"]] if "unk_token" in options else []
    if options.get("byte_fallback"):
        first += [f"<0x{b:02X}>" for b in range(256)]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if bytes_first else []
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=first,
                                                    show_progress=False, limit_alphabet=300))
    t.add_tokens([a for a in added if not a.special])
    t.add_special_tokens([a for a in added if a.special])
    return t


def with_whole_words(t):
    """Tokens that merges do not reach, as Llama-3 has them."""
    j = json.loads(t.to_str())
    parts = {p for m in j["model"]["merges"] for p in m}
    merges = j["model"]["merges"]
    j["model"]["merges"] = [m for i, m in enumerate(merges) if "".join(m) in parts or i % 3]
    j["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(j))


def legacy_merges(t):
    j = json.loads(t.to_str())
    j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    return j


def tokenizers_of(text):
    """Pairs of a name and a tokenizer."""
    yield "gpt2", train(text, byte_level())
    yield "gpt2-prefix", train(text, byte_level(prefix=True))
    yield "gpt2-pattern", train(text, byte_level(GPT2))
    llama3 = with_whole_words(train(text, byte_level(LLAMA3), size=500))
    begin = llama3.token_to_id("<s>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", begin)])])
    yield "llama3", llama3
    yield "qwen2", train(text, byte_level(QWEN2), normalizer=normalizers.NFC())
    yield "o200k", train(text, byte_level(O200K))
    yield "deepseek", train(text, byte_level([r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK]))
    words = [*SPECIALS, AddedToken("New York", normalized=True), AddedToken("the", single_word=True, normalized=False),
             AddedToken(" s", rstrip=True, lstrip=True, normalized=True), AddedToken("É", normalized=True)]
    yield "lowercase-added", train(text, byte_level(), added=words, normalizer=normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase()]))
    inside = [*SPECIALS, AddedToken("end", normalized=False), AddedToken("|>", normalized=True), AddedToken("<mask>s", normalized=False)]
    yield "added-inside", train(text, byte_level(LLAMA3), added=inside)
    yield "nfkc", train(text, byte_level(LLAMA3), normalizer=normalizers.NFKC())
    yield "nfkd-strip", train(text, byte_level(), normalizer=normalizers.Sequence(
        [normalizers.NFKD(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace("!", "?!")]))
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            pre = pre_tokenizers.Sequence([split(r"[\s\p{P}]", behavior, invert), pre_tokenizers.ByteLevel(
                add_prefix_space=False, use_regex=False)])
            yield f"{behavior}{'-invert' if invert else ''}", train(text, pre)
    for name, step in (("digits", pre_tokenizers.Digits(individual_digits=False)), ("digit", pre_tokenizers.Digits(True)),
                       ("punctuation", pre_tokenizers.Punctuation()), ("whitespace", pre_tokenizers.Whitespace()),
                       ("whitespace-split", pre_tokenizers.WhitespaceSplit())):
        yield name, train(text, pre_tokenizers.Sequence([step, byte_level()]))
    yield "unk", train(text, pre_tokenizers.Whitespace(), bytes_first=False, unk_token="<unk>", decoder=decoders.Fuse())
    yield "unk-fused", train(text, pre_tokenizers.WhitespaceSplit(), bytes_first=False, unk_token="<unk>", fuse_unk=True,
                             decoder=decoders.Fuse())
    yield "llama2", train(text, None, bytes_first=False, unk_token="<unk>", fuse_unk=True, byte_fallback=True, size=520,
                          normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                          decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                                     decoders.Strip(" ", 1, 0)]))
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield f"metaspace-{scheme}{'' if cut else '-whole'}", train(
                text, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut), bytes_first=False, unk_token="<unk>",
                byte_fallback=True, size=520, decoder=decoders.Metaspace(prepend_scheme=scheme))


def cases(t, texts, special):
    # tokenizers decodes added tokens of normalized text to their normalized form, ltrain to what the file writes.
    own_form = any(a.normalized and t.id_to_token(i) != a.content for i, a in t.get_added_tokens_decoder().items())
    for text, e in zip(texts, t.encode_batch(texts, add_special_tokens=special), strict=True):
        case = {"text": text, "ids": e.ids}
        decoded = t.decode(e.ids, skip_special_tokens=False)
        if not special and not own_form and "\ufffd" not in decoded and "\ufffd" not in text:
            case["decoded"] = decoded
        yield json.dumps(case, ensure_ascii=False) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ltrain")
    p.add_argument("text")
    p.add_argument("--count", type=int, default=100_000)
    p.add_argument("--only")
    p.add_argument("--write")
    o = p.parse_args()
    text = open(o.text, encoding="utf-8").read()[:200_000].split("\n\n") + ["naïve café 日本語 日本 \u0301 ½ 1234"] * 5
    texts = strings(o.count, random.Random(7))
    if o.write:
        texts = [t for t in texts if len(t) <= 80][:150]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, t in tokenizers_of(text):
            if (o.only and name != o.only) or (o.write and name not in GOLDEN):
                continue
            where = o.write or folder
            path, case_file = os.path.join(where, name + ".tokenizer.json"), os.path.join(where, name + ".cases.jsonl")
            if o.write and os.path.exists(path):
                t = Tokenizer.from_file(path)
            else:
                j = legacy_merges(t) if name == "gpt2" else json.loads(t.to_str())
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
            kinds = [(False, False)]
            if name == "llama3" and not o.write:
                kinds.append((True, False))
            if not o.write or name in SPLIT_GOLDEN:
                kinds.append((False, True))
            for special, split_special in kinds:
                if split_special:
                    case_file = os.path.join(where, name + ".split.cases.jsonl")
                t.encode_special_tokens = split_special
                with open(case_file, "w", encoding="utf-8") as f:
                    f.writelines(cases(t, texts, special))
                command = [o.ltrain, "tokenize", "--tokenizer", path, "--cases", case_file]
                options = ["--special-tokens"] * special + ["--split-special-tokens"] * split_special
                done = subprocess.run(command + options, capture_output=True, text=True)
                print(f"{' '.join([name, *options])}: {(done.stdout or done.stderr).strip().replace(where, '')}", flush=True)
                if done.returncode:
                    failed.append(name)
    print(f"{len(failed)} tokenizers differ{': ' if failed else ''}{', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
