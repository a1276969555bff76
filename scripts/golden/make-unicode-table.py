#!/usr/bin/env python3
"""Writes runtime/tokenizer/unicode_table.cpp: which code points are letters (L), numbers (N) and White_Space.

Usage: scripts/golden/make-unicode-table.py > runtime/tokenizer/unicode_table.cpp
Needs `pip install unicodedata2==16.0.0`: Unicode 16, the version of tiktoken 0.14. Later versions only add
code points.
"""
import unicodedata2

WHITE_SPACE = {*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
               0x205F, 0x3000}


def class_of(c):
    if c in WHITE_SPACE:
        return "kS"
    return {"L": "kL", "N": "kN"}.get(unicodedata2.category(chr(c))[0])


def main():
    ranges = []
    for c in range(0x110000):
        name = class_of(c)
        if name is None:
            continue
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == name:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, name])
    print(f"// Unicode {unicodedata2.unidata_version}. Made by scripts/golden/make-unicode-table.py; not to be edited.")
    print('#include "runtime/tokenizer/unicode.h"\n\nnamespace ltrain::data {\n\n// clang-format off')
    print("const UnicodeRange kUnicodeRanges[] = {")
    line = "   "
    for a, b, name in ranges:
        item = f" {{0x{a:x}, 0x{b:x}, {name}}},"
        if len(line) + len(item) > 110:
            print(line)
            line = "   "
        line += item
    print(f"{line}\n}};\n// clang-format on\nconst int kUnicodeRangeCount = {len(ranges)};")
    print("\n}  // namespace ltrain::data")


main()
