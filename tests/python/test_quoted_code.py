"""Quotations of sources in docs/training-step.md are lines of those sources, in their order."""
import re

from conftest import ROOT


def quotations(text):
    """(file, lines) of each cpp block. A line with a file's name in backquotes alone names the file of the blocks that
    follow, until the next one."""
    file, lines = None, None
    for line in text.splitlines():
        if lines is not None:
            if line == "```":
                yield file, lines
                lines = None
            else:
                lines.append(line)
        elif re.fullmatch(r"`[\w/.-]+`", line):
            file = line.strip("`")
        elif line == "```cpp":
            lines = []


def missing(file, lines, source):
    """The first quoted line that is not in the source after those before it; None where all are."""
    known, at = source.splitlines(), 0
    for line in lines:
        try:
            at = known.index(line, at) + 1
        except ValueError:
            return f"{file}: {line}"
    return None


def test_every_quoted_line_is_in_its_source_in_order():
    found = list(quotations((ROOT / "docs/training-step.md").read_text()))
    assert len(found) >= 10
    assert [m for file, lines in found if (m := missing(file, lines, (ROOT / file).read_text()))] == []


def test_a_line_that_is_not_there_or_comes_earlier_is_seen():
    assert missing("x", ["b"], "a\nb\n") is None
    assert missing("x", ["c"], "a\nb\n") == "x: c"
    assert missing("x", ["b", "a"], "a\nb\n") == "x: a"


def test_files_of_the_three_ways_exist():
    rows = re.findall(r"^\|.*\|$", (ROOT / "docs/training-step.md").read_text(), re.M)
    for path in re.findall(r"`((?:runtime|models|parallel|kernels)/[\w/.]+)`", "\n".join(rows)):
        assert (ROOT / path).exists(), path
