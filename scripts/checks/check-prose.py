#!/usr/bin/env python3
"""Counts sentences that are hard to read, and refuses more of them than scripts/checks/prose-limits.json allows:
- comments that begin with a word such as "of" or "whether", per folder (the subject of such a comment is elsewhere),
- sentences of documents that begin so, per page,
- forms such as "is no", "is none", "that is not one", per folder,
- commit subjects of more than 72 characters since the commit in the limits.
Usage: scripts/checks/check-prose.py [--list | --lower]     --list prints each; --lower writes limits that fell, never higher
ones. tests/python/test_check_prose.py"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMITS = ROOT / "scripts/checks/prose-limits.json"
OPENINGS = set("of that those what likewise whether by as which where".split())
FORMS = re.compile(r"(?<!there )\b(is|are) (no|none)\b(?! (longer|more|later|earlier|less|slower|faster|worse|better)\b)"
                   r"|\bthat (is|are) not one\b|\bwhat there is of\b|\bwhat is there of\b", re.IGNORECASE)
SUBJECT = 72
CODE = (".h", ".cpp", ".cu", ".cuh")
SLASHES = re.compile(r"(?:^|\s)//[/!]?<?\s*(.*)")
HASH = re.compile(r"(?:^|\s)#(?!!)(?:\s+(.*)|$)")
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
WORD = re.compile(r"[A-Za-z']+")


def comments(path, text):
    """(line number, text) of each paragraph of a comment; lines of comments below each other are one paragraph."""
    pattern = SLASHES if path.endswith(CODE) else HASH
    found, alone = [], False
    for number, line in enumerate(text.splitlines(), 1):
        m = pattern.search(STRING.sub('""', line))
        if not m:
            alone = False
            continue
        if not m.group(1):  # the end of a paragraph
            alone = False
            continue
        starts_line = not line[:m.start(1)].strip(" /!<#\t")
        if starts_line and alone:
            found[-1][1] += " " + m.group(1)
        else:
            found.append([number, m.group(1)])
        alone = starts_line
    return [(number, said) for number, said in found if WORD.match(said)]


def sentences(text):
    """(line number, sentence) of a document's prose: no code blocks, tables, quotations of output, headings."""
    found, fenced, block, begin = [], False, "", 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        prose = not fenced and line.strip() and not line.lstrip().startswith(("```", "|", "#", ">", "<"))
        if block and (not prose or re.match(r"\s*([-*]|\d+\.)\s", line)):
            found += [(begin, s) for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z])", block)]
            block = ""
        if prose:
            if not block:
                begin = number
            block = (block + " " + re.sub(r"^\s*([-*]|\d+\.)\s+", "", line).strip()).strip()
    return [(number, s) for number, s in found if WORD.match(s)]


def opening(said):
    return WORD.match(said).group(0).lower() in OPENINGS and not said.lower().startswith("by default")


def folder(path):
    return "/".join(path.split("/")[:2]) if "/" in path and path.count("/") > 1 else path.split("/")[0]


def findings(path, text):
    """(key of the limits, line number, what was found) of one file."""
    if path.endswith(CODE + (".py", ".sh", ".cmake")) or path.endswith("CMakeLists.txt"):
        for number, said in comments(path, text):
            if opening(said):
                yield f"comments of {folder(path)}", number, said
            for m in FORMS.finditer(said):
                yield f"forms in {folder(path)}", number, m.group(0) + " in: " + said
    elif path.endswith(".md"):
        for number, said in sentences(text):
            if opening(said):
                yield f"sentences of {path}", number, said
            for m in FORMS.finditer(said):
                yield f"forms in {path}", number, m.group(0) + " in: " + said


def subjects(since):
    """Commit subjects after a commit; those of the whole history that is here where it is not."""
    known = subprocess.run(["git", "cat-file", "-e", since], cwd=ROOT, capture_output=True).returncode == 0
    log = subprocess.run(["git", "log", "--format=%h %s", *([f"{since}..HEAD"] if known else ["-1"])], cwd=ROOT,
                         capture_output=True, text=True, check=True)
    return [line.split(" ", 1) for line in log.stdout.splitlines()]


def main():
    if sys.argv[1:] not in ([], ["--list"], ["--lower"]):
        sys.exit(__doc__)
    limits = json.loads(LIMITS.read_text())
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = {}
    for path in filter(None, listed.stdout.split("\0")):
        if path.endswith(CODE + (".py", ".sh", ".cmake", ".md", "CMakeLists.txt")) and (ROOT / path).exists():
            for key, number, said in findings(path, (ROOT / path).read_text()):
                found.setdefault(key, []).append(f"{path}:{number}: {said[:90]}")
    long = [f"{commit}: {len(subject)} characters, expected at most {SUBJECT}: {subject}"
            for commit, subject in subjects(limits["subjects_since"]) if len(subject) > SUBJECT]
    if sys.argv[1:] == ["--list"]:
        print("\n".join(line for lines in found.values() for line in lines))
        return
    if sys.argv[1:] == ["--lower"]:
        limits["most"] = {key: min(len(lines), limits["most"].get(key, 0)) for key, lines in sorted(found.items())
                          if limits["most"].get(key, 0)}
        LIMITS.write_text(json.dumps(limits, indent=1) + "\n")
    above = []
    for key, lines in sorted(found.items()):
        most = limits["most"].get(key, 0)
        if len(lines) > most:
            above += [f"{key}: {len(lines)}, expected at most {most} (scripts/checks/prose-limits.json):", *lines]
    if above or long:
        print("\n".join(above + long))
        print("A comment or sentence begins with its subject or verb: CONTRIBUTING.md, How we write")
        sys.exit(1)
    print(f"check-prose: {sum(map(len, found.values()))} sentences to rewrite, each within its limit")


if __name__ == "__main__":
    main()
