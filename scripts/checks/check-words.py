#!/usr/bin/env python3
"""Refuses words of scripts/checks/word-list.txt in sources, comments, messages, documents and names of files, and runs
scripts/checks/check-prose.py, which counts sentences that are hard to read.
Usage: scripts/checks/check-words.py [--counts]
--counts prints how often each rule is broken and exits with 0. tests/python/test_check_words.py tests the check."""
import bisect
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = "scripts/checks/word-list.txt"
# Neither prose nor names of ours: the check itself, and data that other programs wrote.
SKIPPED = [LIST, "scripts/checks/prose-limits.json", "scripts/checks/check-words.py", "tests/python/test_check_words.py", "tests/golden/*", "docs/measurements/*",
           "scripts/compare/results/*"]
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".md", ".sh", ".py", ".txt", ".json", ".yaml", ".cmake", ".sbatch", ""}
BOUNDARY = r"(?:(?<![A-Za-z0-9])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?![A-Za-z0-9]))"
# Before the text of a comment, a list or a quotation that goes on in the next line.
LEADER = re.compile(r"^\s*(?:///?<?|\*|#|>)?\s*")


def literals(pattern):
    """A word of each alternative that every match of it has, in small letters, so that most texts need no search;
    nothing where an alternative has none."""
    flat, before = re.sub(r"\\.", "|-|", pattern).replace("|-|", "."), None
    flat = re.sub(r"\[[^\]]*\]", ".", flat)
    while flat != before:
        before, flat = flat, re.sub(r"\([^()]*\)\??", ".", flat)
    words = [re.findall(r"[a-z_]{3,}", re.sub(r".[?*]", ".", part).lower()) for part in flat.split("|")]
    return [max(found, key=len) for found in words] if all(words) else []


class Rule:
    def __init__(self, line, number):
        cells = line.split("\t")
        if not 2 <= len(cells) <= 3 or not all(cell.strip() for cell in cells):
            raise ValueError(f"{LIST}:{number}: expected REGEX<tab>REPLACEMENT[<tab>GLOB,GLOB], got {len(cells)} cells")
        self.text, self.instead, self.number = cells[0], cells[1].strip(), number
        self.allowed = [glob.strip() for glob in cells[2].split(",")] if len(cells) == 3 else []
        capital = re.search(r"[A-Z]", re.sub(r"\\[A-Z]|\[[A-Za-z]-[A-Za-z]\]", "", self.text))
        try:
            self.pattern = re.compile(self.text.replace(r"\b", BOUNDARY), 0 if capital else re.IGNORECASE)
        except re.error as e:
            raise ValueError(f"{LIST}:{number}: {self.text}: {e}") from e
        self.literals = literals(self.text)

    def allows(self, path):
        return any(fnmatch.fnmatch(path, glob) for glob in self.allowed)


def read_rules(text):
    lines = enumerate(text.splitlines(), 1)
    return [Rule(line, number) for number, line in lines if line.strip() and not line.startswith("#")]


def joined(path, text):
    """The text in one line, without what begins the next line of a comment or divides a C++ string, and the places
    where lines begin."""
    parts, begins, length = [], [], 0
    code = path.endswith((".cpp", ".h", ".cu", ".cuh"))
    for line in text.splitlines():
        body = LEADER.sub("", line).rstrip()
        if code and parts and body.startswith('"') and parts[-1].endswith('" '):
            parts[-1] = parts[-1][:-2]
            length -= 2
            body = body[1:]
        begins.append(length)
        parts.append(body + " ")
        length += len(body) + 1
    return re.sub(r"[\t ]", " ", "".join(parts)), begins


def findings(path, text, rules):
    """(line or 0 for the path itself, what stands there, rule); one finding for a rule, line and word."""
    flat, begins = joined(path, text)
    small = (path + flat).lower()
    for rule in rules:
        if rule.allows(path) or rule.literals and not any(word in small for word in rule.literals):
            continue
        found = [(0, m.group(0)) for m in rule.pattern.finditer(path)]
        found += [(bisect.bisect_right(begins, m.start()), m.group(0)) for m in rule.pattern.finditer(flat)]
        for line, word in sorted(set(found)):
            yield line, word, rule


def main():
    if sys.argv[1:] not in ([], ["--counts"]):
        sys.exit(__doc__)
    rules = read_rules((ROOT / LIST).read_text())
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [f for f in listed.stdout.split("\0")
             if f and pathlib.Path(f).suffix in SUFFIXES and not any(fnmatch.fnmatch(f, glob) for glob in SKIPPED)]
    found, counts, paths = [], dict.fromkeys((rule.number for rule in rules), 0), {}
    for f in files:
        if not (ROOT / f).exists():  # removed, and not yet committed
            continue
        for line, word, rule in findings(f, (ROOT / f).read_text(), rules):
            found.append(f"{f}:{line}: {word}: use {rule.instead}" if line else f"{f}: {word}: use {rule.instead}")
            counts[rule.number] += 1
            paths.setdefault(rule.number, set()).add(f)
    if sys.argv[1:] == ["--counts"]:
        for rule in rules:
            in_files = len(paths.get(rule.number, ()))
            print(f"{counts[rule.number]:5} in {in_files:3} files  {rule.text}  ->  {rule.instead}")
        print(f"{len(found):5} in {len(set().union(*paths.values())) if paths else 0:3} files  all")
        return
    print("\n".join(found) if found else f"check-words: {len(files)} files, {len(rules)} rules", flush=True)
    prose = subprocess.run([ROOT / "scripts/checks/check-prose.py"], cwd=ROOT).returncode
    sys.exit(1 if found else prose)


if __name__ == "__main__":
    main()
