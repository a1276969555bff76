#!/usr/bin/env python3
"""Prints kLeftAlone of runtime/tokenizer/formats/normalizer.cpp: code points that Python's Unicode (14, as utf8proc's) decomposes,
orders or composes, and Hugging Face's tokenizers, whose tables are older, do not.

Usage: scripts/golden/make-normalization-table.py
Needs `pip install tokenizers` and Python 3.11.
"""
import unicodedata

from tokenizers import normalizers

assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
NFD, NFKD, NFC = (lambda s, n=n: n.normalize_str(s) for n in (normalizers.NFD(), normalizers.NFKD(), normalizers.NFC()))


def differs(c):
    if NFKD(c) != unicodedata.normalize("NFKD", c) or NFD(c) != unicodedata.normalize("NFD", c):
        return True
    order = unicodedata.combining(c)
    if order == 0:
        return False
    text = f"a{c}\u0334" if order > 1 else f"a\u0301{c}"  # U+0334 is of class 1, U+0301 of class 230
    return NFD(text) != unicodedata.normalize("NFD", text)


def main():
    found = set()
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        c = chr(code)
        if differs(c):
            found.add(code)
        parts = unicodedata.normalize("NFD", c)
        if len(parts) == 2 and unicodedata.normalize("NFC", parts) == c and NFC(parts) != c:
            found.update(map(ord, parts))
    ranges = []
    for code in sorted(found):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    print(", ".join(f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges))


main()
