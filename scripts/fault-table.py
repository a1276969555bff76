#!/usr/bin/env python3
"""The table of faults, docs/faults.md: tests/faults/faults.json with the results of the last run of the tests.
Usage: scripts/fault-table.py BUILD           prints the page; fails when a fault's test has failed or did not run
       scripts/fault-table.py BUILD --write   writes docs/faults.md
Reads BUILD/tests.log (scripts/run-tests.sh) and BUILD/test-slurm.log (scripts/test-slurm.sh)."""
import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "faults" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
# The log has two lines with a test's name, its output, and one with its result.
NAME = re.compile(r"^\d+/\d+ Testing: (.*)$")
RESULT = re.compile(r"^Test (Passed|Failed)\.?$")
SLURM = re.compile(r"^(ok|FAIL) +(.*?)(?: \(\d+ ms\)|: exit code .*)$")
HEAD = """# Faults

This page shows what ltrain does when something breaks, and the tests that break it. `scripts/fault-table.py` writes it
from the results of a run of the tests: {when}, ltrain {version}, {machine}.

**passed**: the test injected the fault, and the promise was kept. **FAILED**: it was not. **not run**: the test was
left out or skipped on that machine. **not injected**: no test breaks this, for the reason that is given.

| | fault | promise | result |
|---|---|---|---|
"""


def results_of(tests_log, slurm_log):
    """passed, FAILED or not run, by the names of faults.json."""
    results, name, skipped = {}, None, False
    for line in tests_log.splitlines():
        if found := NAME.match(line):
            name, skipped = found.group(1), False
        elif line.startswith("SKIPPED: "):
            skipped = True
        elif (found := RESULT.match(line)) and name:
            results[name] = "FAILED" if found.group(1) == "Failed" else "not run" if skipped else "passed"
            name = None
    for line in slurm_log.splitlines():
        if found := SLURM.match(line):
            results["slurm:" + found.group(2)] = "passed" if found.group(1) == "ok" else "FAILED"
    return results


def result_of(row, results):
    """The result of a fault: the worst of its tests."""
    if not row["tests"]:
        return "not injected"
    found = [results.get(test, "not run") for test in row["tests"]]
    return next((worst for worst in ("FAILED", "not run") if worst in found), "passed")


def row_text(row, result):
    tests = "; ".join(f"`{test.replace('|', '/')}`" for test in row["tests"])
    shown = f"**{result}**" if result == "FAILED" else result
    return (f"| {row['fault']} | {row['injection']} | {row['promise']} | " +
            " ".join(part for part in (shown + ".", row.get("limit", ""), tests) if part) + " |")


def machine():
    """Processor, number of cores and memory, as the page names them."""
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    gib = int(re.search(r"^MemTotal: +(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) / 2**20
    cores = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{cores} cores of {model.group(1) if model else 'an unknown processor'}, {gib:.0f} GiB"


def page(table, results, when, version, on):
    head = HEAD.format(when=when, version=version, machine=on)
    return head + "\n".join(row_text(row, result_of(row, results)) for row in table) + "\n"


def main(arguments):
    build = pathlib.Path(arguments[0])
    text = lambda name: (build / name).read_text(errors="replace") if (build / name).exists() else ""
    table = json.loads(TABLE.read_text())
    results = results_of(text("tests.log"), text("test-slurm.log"))
    version = subprocess.run([build / "ltrain", "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    written = page(table, results, datetime.date.today().isoformat(), version.removeprefix("ltrain "), machine())
    if "--write" in arguments:
        PAGE.write_text(written)
    else:
        print(written, end="")
    bad = [f"{row['fault']}: {result}" for row in table if (result := result_of(row, results)) in ("FAILED", "not run")]
    if bad:
        print("fault-table: " + ", ".join(bad), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(64)
    sys.exit(main(sys.argv[1:]))
