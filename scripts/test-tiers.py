#!/usr/bin/env python3
"""Which tests are fast, and how long each takes. The record is tests/durations.json: seconds of each test, two at a
time on two cores.
Usage: scripts/test-tiers.py fast BUILD       prints the argument of `ctest -I` that runs the fast ones
       scripts/test-tiers.py record BUILD     writes the record from the last run of BUILD's tests
       scripts/test-tiers.py slowest BUILD    prints the ten that took longest in that run, beside the record
       scripts/test-tiers.py check BUILD      fails when one test of twenty is in no record: the fast ones would not be fast
A test is fast when it took at most 0.5 s when it was recorded, or is new."""
import json
import pathlib
import re
import subprocess
import sys

RECORD = pathlib.Path(__file__).resolve().parent.parent / "tests" / "durations.json"
FAST_SECONDS = 0.5
NEW_SHARE = 0.05
# "12/34 Testing: kernels: name", "... Test time =   0.12 sec" in LastTest.log
NAME = re.compile(r"^\d+/\d+ Testing: (.*)$")
TIME = re.compile(r"^Test time = +([0-9.]+) sec$")


def times_of(log):
    """Seconds by name out of the text of ctest's LastTest.log."""
    times, name = {}, None
    for line in log.splitlines():
        if found := NAME.match(line):
            name = found.group(1)
        elif (found := TIME.match(line)) and name:
            times[name], name = float(found.group(1)), None
    return times


def is_fast(name, record):
    return not name.split(":", 1)[-1].strip().startswith("slow:") and record.get(name, 0) <= FAST_SECONDS


def indexes(names, record):
    """Of ctest's -I: numbers of the tests (from 1) that are fast."""
    chosen = [number for number, name in enumerate(names, 1) if is_fast(name, record)]
    if not chosen:
        raise ValueError("no test is fast")
    return "0,0,0," + ",".join(map(str, chosen))


def too_many_new(names, record):
    """Why the record does not say any more which tests are fast; None where it does."""
    new = [name for name in names if name not in record]
    if len(new) <= NEW_SHARE * len(names):
        return None
    return (f"{len(new)} of {len(names)} tests are not in {RECORD.name}, {new[0]!r} is one: run scripts/run-tests.sh BUILD "
            "--record where nothing else runs")


def names_of(build):
    """Of ctest's tests, in its order."""
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
    return [t["name"] for t in json.loads(listed.stdout)["tests"]]


def last_log(build):
    return times_of((pathlib.Path(build) / "Testing" / "Temporary" / "LastTest.log").read_text(errors="replace"))


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("fast", "record", "slowest", "check"):
        sys.exit(__doc__)
    command, build = sys.argv[1:]
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if command == "fast":
        print(indexes(names_of(build), record))
    elif command == "check":
        if why := too_many_new(names_of(build), record):
            sys.exit(f"test-tiers: {why}")
    elif command == "record":
        record.update({name: round(seconds, 2) for name, seconds in last_log(build).items()})
        there = set(names_of(build))
        record = {name: seconds for name, seconds in record.items() if name in there}
        RECORD.write_text(json.dumps(record, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
        print(f"test-tiers: {RECORD.name} has {len(record)} tests, {sum(record.values()):.0f} s in sum")
    else:
        times = last_log(build)
        for name, seconds in sorted(times.items(), key=lambda item: -item[1])[:10]:
            before = f"{record[name]:.1f} s recorded" if name in record else "not recorded"
            print(f"  {seconds:7.1f} s  {name}  ({before})")


if __name__ == "__main__":
    main()
