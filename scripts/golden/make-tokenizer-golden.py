#!/usr/bin/env python3
"""Writes the tokenizer vectors of tests/golden/ with tiktoken.

Usage: scripts/golden/make-tokenizer-golden.py GPT2_RANK_FILE
tests/golden/small.tiktoken: a vocabulary by hand (MERGES below). small_vectors.txt and gpt2_vectors.txt:
lines of the text in hex, a tab, the ids. Needs `pip install tiktoken`.
"""
import base64
import os
import random
import sys

import tiktoken
from tiktoken.load import load_tiktoken_bpe

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden")
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# Ranked after the single bytes. Merges cannot reach "xyz" (neither "xy" nor "yz" is a token), only a whole match.
MERGES = ["aa", " t", "he", "aaaa", "in", " the", "ab", "ba", "aba", "  ", "    ", "\n\n", "'l", "'ll", "11", "111",
          "é", "日", "日本", "..", "...", " a", "er", "ther", "other", "xyz", "aaa", "\u00a0", "!!", "1111"]
TEXTS = [
    "", "a", "Hello world", "hello  world", " leading", "trailing ", "trailing  \n", "\n\n\nx", " \n \n x",
    "\t\tx", "it's we're I've I'm you'll he'd don't", "IT'S WE'RE", "'s 't 're 've 'm 'll 'd 'x '",
    "''s!'s", " 's", "aaaaaaa", "a" * 64, "a" * 65, "a" * 1000, "ab" * 50, "aba" * 40,
    "the other mother in there", "    four", "1234567890", " 1 22 333 4444", "3.14159", "x=1;y=2", "...",
    " ... ..", "-----", "é日本語日本", "naïve café", "😀👍🏽 ok", "ſ's 'ſ", "\u0301combining e\u0301",
    "\u00a0nbsp\u00a0 x", "\u0085x", " \u0085x", "\u3000\u3000x", "\u200bzero", "\u2009thin  \u2009x",
    "²½Ⅷ٣४", "a²b", "\x00\x01\x1c\x1d x", "xyz", " xyz", "xyz!", "wxyz", "<|endoftext|>",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
    "\r\n\r\nx\r\n", "\ufeffbom", "supercalifragilisticexpialidocious",
    "The quick brown fox jumps over the lazy dog.", "      x", "      ",
]


def vectors():
    rng = random.Random(7)
    alphabet = list("aabhetlrsx'' \t\n019.!é日本😀\u0301\u00a0²yz")
    return TEXTS + ["".join(rng.choices(alphabet, k=rng.randint(2, 80))) for _ in range(150)]


def write(name, ranks):
    encoding = tiktoken.Encoding("golden", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    with open(os.path.join(FOLDER, name), "w") as f:
        for text in vectors():
            ids = " ".join(map(str, encoding.encode_ordinary(text)))
            f.write(f"{text.encode().hex()}\t{ids}\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # The single bytes in GPT-2's order, which is not that of their values.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = plain + [b for b in range(256) if b not in plain]
    tokens = [bytes([b]) for b in order] + [m.encode() for m in MERGES]
    with open(os.path.join(FOLDER, "small.tiktoken"), "w") as f:
        f.writelines(f"{base64.b64encode(t).decode()} {rank}\n" for rank, t in enumerate(tokens))
    write("small_vectors.txt", {t: rank for rank, t in enumerate(tokens)})
    write("gpt2_vectors.txt", load_tiktoken_bpe(sys.argv[1]))


main()
