#!/usr/bin/env python3
"""Refuses a name that two sources of one folder define for themselves, in an anonymous namespace or as `static`: the files
of a folder are compiled as one (LTRAIN_UNITY), which would define it twice. Functions may share a name where their
parameters differ. Refuses two types of one name in one named namespace too: linked into one program they
would share destructors and templates, and crash."""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("base", "kernels", "parallel", "models", "runtime", "planner", "app", "tests")
CONSTANT = re.compile(r"^(?:inline )?(?:static )?const(?:expr|init)? [^=({;]*?\b(\w+)(?:\[[^\]]*\])*\s*[={]")
TYPE = re.compile(r"^(?:struct|class|enum class|enum|union) (\w+)\b(?!::)[^;]*\{")
PREAMBLE = re.compile(r"^(?:\s*(?:\"\"|#[^\n]*\n))*\s*")  # comments and directives before a definition
FUNCTION = re.compile(r"^(?:template <[^>]*>\s*)?(?:static )?(?:inline )?(?:constexpr )?[\w:<>,&*\s\[\]]+?\b(\w+)\(([^{;]*?)\)"
                      r"(?: const)?(?: noexcept)?\s*\{")
STRINGS = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//[^\n]*|/\*.*?\*/', re.S)


def without_text(source):
    """The source with strings and comments as blanks of the same lines."""
    return STRINGS.sub(lambda m: '""' + "\n" * m.group().count("\n"), source)


def own_definitions(source):
    """(namespace, kind and name, line) of what a file defines for itself."""
    return definitions(source, definition)


def shared_types(source):
    """(namespace, name, line) of the types that a file defines in named namespaces."""
    return definitions(source, shared_type)


def definitions(source, definition):
    """What `definition` yields for each statement at namespace scope."""
    text = without_text(source)
    spaces, depth, begin = [], 0, 0  # (name, depth inside)
    for i, c in enumerate(text):
        if c == ";" and depth == (spaces[-1][1] if spaces else 0):
            yield from definition(text, begin, i + 1, spaces)
            begin = i + 1
        elif c == "{":
            head = text[begin:i].strip()
            named = re.fullmatch(r"(?s)(?:.*\n)?\s*(?:inline )?namespace\s*([\w:]*)", head)
            if named and depth == (spaces[-1][1] if spaces else 0):
                depth += 1
                spaces.append((named.group(1), depth))
                begin = i + 1
                continue
            if depth == (spaces[-1][1] if spaces else 0):
                yield from definition(text, begin, i + 1, spaces)
            depth += 1
        elif c == "}":
            depth -= 1
            if spaces and depth < spaces[-1][1]:
                spaces.pop()
                begin = i + 1
            elif depth == (spaces[-1][1] if spaces else 0):
                begin = i + 1


def definition(text, begin, end, spaces):
    head = PREAMBLE.sub("", text[begin:end])
    head = re.sub(r"\n#[^\n]*", "", head).strip()
    own = any(not name for name, _ in spaces)
    if not own and not head.startswith("static "):
        return
    space = "::".join(name for name, _ in spaces if name)
    line = text.count("\n", 0, end) + 1
    for pattern in (CONSTANT, TYPE):
        found = pattern.match(head)
        if found and (own or pattern is CONSTANT):
            yield space, found.group(1), line
            return
    found = FUNCTION.match(head)
    if found and found.group(1) not in ("if", "for", "while", "switch"):
        # without the names and defaults of parameters
        types = re.sub(r"\s*\b(\w+)\s*(=[^,]*)?(,|$)", r"\3", " ".join(found.group(2).split()))
        yield space, f"{found.group(1)}({types})", line


def shared_type(text, begin, end, spaces):
    found = TYPE.match(PREAMBLE.sub("", text[begin:end]))
    if found and all(name for name, _ in spaces):
        yield "::".join(name for name, _ in spaces), found.group(1), text.count("\n", 0, end) + 1


def twice_defined_types():
    """Types of one name in one namespace, with their places."""
    seen = collections.defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.*")):
            if file.suffix in (".h", ".cpp"):
                for space, name, line in shared_types(file.read_text()):
                    seen[space, name].append((file, line))  # twice in one file: under #if and #else
    assert len(seen) > 500, f"check-names: found only {len(seen)} types"
    return {f"{space}::{name}": [f"{file.relative_to(ROOT)}:{line}" for file, line in places]
            for (space, name), places in seen.items() if len({file for file, _ in places}) > 1}


def main():
    twice = twice_defined_types()
    for name, places in twice.items():
        print(f"{name}: a type defined at {' and '.join(places)}; rename one")
    seen = collections.defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.c*")):
            for space, name, line in own_definitions(file.read_text()) if file.suffix in (".cpp", ".cu") else ():
                seen[file.parent, file.suffix, space, name].append((file, line))
    wrong = 0
    for (*_, name), places in seen.items():
        files = {file for file, _ in places}
        if len(files) > 1:
            wrong += 1
            print(f"{name}: " + ", ".join(f"{f.relative_to(ROOT)}:{line}" for f, line in places))
    count = sum(len(places) for places in seen.values())
    print(f"check-names: {count} names that a source has for itself" if not wrong else
          f"check-names: {wrong} names that two sources of a folder define; rename one, or share it")
    return 1 if wrong or twice or count < 1000 else 0


if __name__ == "__main__":
    sys.exit(main())
