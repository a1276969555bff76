#!/usr/bin/env python3
"""Refuses an assertion of Catch2 in a lambda that another thread runs: its assertions share a state without a lock, so
two at once are a data race, which ThreadSanitizer sees on some runs only. Such a lambda stores what it saw, and the
test checks it after the join. Refuses a semicolon in the name of a test, at which ctest's list would cut it in two."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Calls that run a lambda on another thread: a named thread, a vector of threads, ranks as threads.
RUNS = re.compile(r"std::j?thread(?:\s+\w+)?\s*[({]|std::async\(|threads\.emplace_back\(|\bon_threads\(")
ASSERTION = re.compile(r"\b(?:CHECK|REQUIRE)(?:_\w+)?\(|\b(?:FAIL|FAIL_CHECK|SUCCEED)\(")


def end_of(text, begin):
    """The index of the bracket that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        if text[i] in "({[":
            depth += 1
        elif text[i] in ")}]":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def assertions_on_threads(text):
    """Line and text of each assertion inside the arguments of a call that `RUNS` finds."""
    for call in RUNS.finditer(text):
        begin = call.end() - 1
        for found in ASSERTION.finditer(text, begin, end_of(text, begin)):
            yield text.count("\n", 0, found.start()) + 1, found.group()[:-1]


NAME = re.compile(r'\b(?:TEMPLATE_)?TEST_CASE\w*\(\s*"([^"]*;[^"]*)"')


def names_with_semicolons(text):
    """Line and name of each."""
    for found in NAME.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found.group(1)


def main():
    sources = [f for f in sorted((ROOT / "tests").rglob("*")) if f.suffix in (".cpp", ".h", ".cu")]
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {what} on another thread; store what it saw and check after the join"
        for file in sources
        for line, what in assertions_on_threads(file.read_text())
    ]
    wrong += [
        f"{file.relative_to(ROOT)}:{line}: a semicolon in the name of a test, {name!r}: ctest would cut it in two"
        for file in sources
        for line, name in names_with_semicolons(file.read_text())
    ]
    print("\n".join(wrong) or "check-tests: no assertion runs on another thread, and no name has a semicolon")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
