#!/usr/bin/env python3
"""Counts initialisers that list more than three members of a struct without their names, as in Row{a, 0, true, false},
where designated ones (.transposed = true) say which is which, and refuses more than the limits below, which only fall.
Seen are braces behind the name of a struct without constructors, Type{...} and Type x{...}; rows of tables and lists in
the place of an argument, whose type is not written there, are not.
Usage: scripts/checks/check-aggregates.py [--list]     --list prints each"""

import importlib.util
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_PRODUCT, MOST_TESTS = 26, 108
MOST_POSITIONAL = 3
STRUCT = re.compile(r"\bstruct (?:alignas\([^)]*\) )?(\w+)\s*(?:final\s*)?\{")
INITIALISER = re.compile(r"(?<![\w:])(?:\w+::)*(\w+)(?:\s+\w+)?\s*(?:=\s*)?\{")
TEMPLATES = re.compile(r"<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>")
NO_MEMBER = ("static", "using", "friend", "enum", "struct", "class", "template", "typedef", "union", "LT_", "#")

_spec = importlib.util.spec_from_file_location("check_names", pathlib.Path(__file__).with_name("check-names.py"))
_names = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_names)


def inside(text, begin):
    """The text between the brace at `begin` and the one that closes it."""
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[begin + 1:i]
    return text[begin + 1:]


def elements(text):
    """The parts of a list that commas outside brackets divide."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "({[<") - (c in ")}]>")
        if c == "," and depth <= 0:
            parts, part = parts + [part.strip()], ""
        else:
            part += c
    return parts + [part.strip()] if part.strip() else parts


def members(name, body):
    """The number of data members of an aggregate; 0 for a struct with constructors or hidden members."""
    flat, depth = "", 0
    for c in body:
        depth += c == "{"
        if depth == 0:
            flat += c
        if c == "}":
            depth -= 1
            flat += "{}" if depth == 0 else ""
    if re.search(rf"\b{name}\s*\(", flat) or re.search(r"\b(?:private|protected|virtual)\b", flat):
        return 0
    count = 0
    for part in re.split(r";|(?<=\))\s*(?:const)?\s*(?:noexcept)?\s*\{\}", flat):
        part = " ".join(part.split())
        if not part or part.startswith(NO_MEMBER) or re.search(r"\boperator\b", part):
            continue
        declared = re.sub(r"=.*?(?=,|$)", "", part)
        if "(" not in TEMPLATES.sub("", declared):
            count += len(elements(declared.replace("{}", "")))
    return count


def aggregates(texts):
    """Names of structs with more than three members; texts are without strings and comments."""
    return {m.group(1) for text in texts for m in STRUCT.finditer(text)
            if members(m.group(1), inside(text, m.end() - 1)) > MOST_POSITIONAL}


def positional(text, known):
    """(line, name, number of elements) of each initialiser that names none of more than three members."""
    for m in INITIALISER.finditer(text):
        # A definition of a struct has its own name, or that of its base, in front of the brace.
        before = re.split(r"[;{}]", text[max(0, m.start() - 200):m.start()])[-1]
        if m.group(1) not in known or re.search(r"\b(?:struct|class|enum)\s", before):
            continue
        listed = elements(inside(text, m.end() - 1))
        if len(listed) > MOST_POSITIONAL and not listed[0].startswith("."):
            yield text.count("\n", 0, m.start()) + 1, m.group(1), len(listed)


def main():
    files = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {f: _names.without_text((ROOT / f).read_text()) for f in files.stdout.split() if (ROOT / f).exists()}
    known = aggregates(texts.values())
    found = [(f, *row) for f, text in texts.items() for row in positional(text, known)]
    wrong = 0
    for what, most, rows in (("product code", MOST_PRODUCT, [r for r in found if not r[0].startswith("tests/")]),
                             ("tests", MOST_TESTS, [r for r in found if r[0].startswith("tests/")])):
        listed = "--list" in sys.argv[1:] or len(rows) > most
        if listed:
            print("\n".join(f"{f}:{line}: {name} with {n} values and no names" for f, line, name, n in rows))
        if len(rows) > most:
            wrong += 1
            print(f"check-aggregates: {len(rows)} lists without names in {what}, expected at most {most}: write .member = value")
        else:
            print(f"check-aggregates: {len(rows)} lists without names in {what}, {len(known)} structs")
    return 1 if wrong or len(known) < 300 else 0


if __name__ == "__main__":
    sys.exit(main())
