#!/usr/bin/env python3
"""Refuses what has grown too large to read: a folder of more than 40 C++ files, a function of more than 100 lines, more
functions of over 60 lines than the limit below, and a CUDA kernel that is longer than the longest. Lines count from the
name to the closing brace. The limits only fall; tests, with their long cases, count for folders alone.
Usage: scripts/checks/check-sizes.py [--list]     --list prints each function of over 60 lines"""

import collections
import importlib.util
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_FILES = 40
MOST_LINES = 100
LONG, MOST_LONG = 60, 18
MOST_KERNEL_LINES = 220
CODE = (".h", ".cpp", ".cu", ".cuh")
KERNEL = re.compile(r"(_cuda\.h|\.cuh?)$")  # device code: splitting it moves registers and spills
SCOPE = re.compile(r"\b(?:namespace|struct|class|union|enum|extern)\b[^()]*$")

_spec = importlib.util.spec_from_file_location("check_names", pathlib.Path(__file__).with_name("check-names.py"))
_names = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_names)


def functions(source):
    """(lines, first line, name) of each function, members too. Lambdas belong to the function around them."""
    text = _names.without_text(source)
    text = re.sub(r"^[ \t]*#[^\n]*(?:\\\n[^\n]*)*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.M)
    found, scopes, depth, begin = [], 0, 0, 0  # depth: braces inside the function or initialiser that begins at `start`
    start = name = None
    for i, c in enumerate(text):
        if c == "{":
            if depth == 0:
                head = text[begin:i].strip()
                if SCOPE.search(head):
                    scopes, begin = scopes + 1, i + 1
                    continue
                start = text.find(head, begin) if head else i
                call = re.search(r"([\w:~]+)\s*\(", re.sub(r"__launch_bounds__\([^)]*\)", "", head))
                name = call.group(1) if call and not head.endswith("=") else None
            depth += 1
        elif c == "}":
            if depth == 0:
                scopes, begin = scopes - 1, i + 1
                continue
            depth -= 1
            if depth == 0 and name:
                first = text.count("\n", 0, start) + 1
                found.append((text.count("\n", 0, i) + 2 - first, first, name))
                begin = i + 1
        elif c == ";" and depth == 0:
            begin = i + 1
    return found


def too_full(files):
    """A message for each folder with too many C++ files directly in it."""
    counts = collections.Counter(str(pathlib.PurePath(f).parent) for f in files if f.endswith(CODE))
    return [f"{folder}: {n} C++ files, expected at most {MOST_FILES}: split it by topic (FOLDERS in "
            "scripts/checks/check-includes.py)" for folder, n in sorted(counts.items()) if n > MOST_FILES]


def too_long(sources):
    """Messages about the functions of {path: text}, and all long ones, longest first."""
    rows = [(lines, path, first, name, bool(KERNEL.search(path)))
            for path, text in sources.items() for lines, first, name in functions(text)]
    wrong = [f"{path}:{first}: {name} has {lines} lines, expected at most {MOST_KERNEL_LINES if kernel else MOST_LINES}"
             for lines, path, first, name, kernel in rows if lines > (MOST_KERNEL_LINES if kernel else MOST_LINES)]
    long = sorted((r for r in rows if r[0] > LONG and not r[4]), reverse=True)
    if len(long) > MOST_LONG:
        wrong.append(f"{len(long)} functions have more than {LONG} lines, expected at most {MOST_LONG}: split one by meaning "
                     "(scripts/checks/check-sizes.py --list)")
    return wrong, long, len(rows)


def main():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    files = [f for f in listed if f.endswith(CODE) and (ROOT / f).exists()]
    sources = {f: (ROOT / f).read_text() for f in files if not f.startswith(("tests/", "scripts/"))}
    wrong, long, count = too_long(sources)
    wrong += too_full(files)
    if "--list" in sys.argv[1:]:
        for lines, path, first, name, _ in long:
            print(f"{lines} {path}:{first}: {name}")
    print("\n".join(wrong) or f"check-sizes: {len(files)} files, {count} functions, {len(long)} of over {LONG} lines")
    return 1 if wrong or count < 5000 else 0


if __name__ == "__main__":
    sys.exit(main())
