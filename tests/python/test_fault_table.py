"""scripts/fault-table.py, and that docs/faults.md has what tests/faults/faults.json promises."""
import json

from conftest import ROOT, script

faults = script("fault-table")
TABLE = json.loads(faults.TABLE.read_text())
LOG = """1/3 Testing: faults:a killed rank (F1)
1/3 Test: faults:a killed rank (F1)
All tests passed (2 assertions in 1 test case)
Test Passed.
2/3 Testing: app:one: two
2/3 Test: app:one: two
Test Failed.
3/3 Testing: app:three
SKIPPED: no network namespaces
Test Passed.
"""


def test_results_are_read_from_the_logs():
    results = faults.results_of(LOG, "ok    it ends (12 ms)\nFAIL  it stays: exit code 1, expected 0 and \n")
    assert results == {"faults:a killed rank (F1)": "passed", "app:one: two": "FAILED", "app:three": "not run",
                       "slurm:it ends": "passed", "slurm:it stays": "FAILED"}


def test_a_fault_has_the_worst_result_of_its_tests_and_a_failed_one_is_shown():
    results = faults.results_of(LOG, "")
    row = {"fault": "F0", "injection": "a", "promise": "b", "tests": ["faults:a killed rank (F1)"]}
    assert faults.result_of(row, results) == "passed"
    assert faults.result_of({**row, "tests": row["tests"] + ["app:three"]}, results) == "not run"
    row["tests"] += ["app:three", "app:one: two"]
    assert "**FAILED**" in faults.row_text(row, faults.result_of(row, results))
    assert faults.result_of({**row, "tests": []}, results) == "not injected"
    assert faults.result_of({**row, "tests": ["app:renamed"]}, results) == "not run"


def test_every_test_of_the_table_exists():
    known = json.loads((ROOT / "tests" / "durations.json").read_text())
    slurm = "".join(path.read_text() for path in ROOT.glob("scripts/test-slurm*.sh"))
    for row in TABLE:
        for test in row["tests"]:
            kind, name = test.split(":", 1)
            assert f'check "{name}"' in slurm if kind == "slurm" else test in known, test
        assert row["tests"] or row.get("limit"), f"{row['fault']} has no test and no reason"


def test_the_page_has_every_fault_with_its_promise_and_tests():
    page = faults.PAGE.read_text()
    for row in TABLE:
        line = next(line for line in page.splitlines() if line.startswith(f"| {row['fault']} |"))
        result = next(r for r in ("passed", "**FAILED**", "not run", "not injected") if f"| {r}." in line)
        assert line == faults.row_text(row, result.strip("*")), row["fault"]
