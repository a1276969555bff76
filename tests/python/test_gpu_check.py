"""scripts/compare/gpu_check.py where no GPU is: limits, second tries, results on disk, planned jobs."""
import argparse
import json
import os
import sys
import time

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "compare"))
import gpu_check  # noqa: E402


@pytest.fixture
def checks(tmp_path, monkeypatch):
    program = tmp_path / "ltrain"
    program.write_text(
        "#!/bin/sh\n"
        "case $1 in\n"
        "  good) echo fine;;\n"
        "  bad) echo 'ltrain: broken'; exit 70;;\n"
        "  late) [ -n \"$CUDA_LAUNCH_BLOCKING\" ] || exit 71;;\n"
        "  left) echo 'SKIPPED: no such card';;\n"
        "  hang) sleep 60 & echo $! > child; wait;;\n"
        "  plan) case \"$*\" in *wrong=1*) echo 'ltrain: wrong = 1: not known'; exit 64;; esac;;\n"
        "  run) echo 'must not run'; exit 1;;\n"
        "  --version) echo ltrain 0;;\n"
        "esac\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_check, "LTRAIN", str(program))
    c = gpu_check.Checks(argparse.Namespace(out=str(tmp_path), seconds=60, only=""))
    yield c


def check(c, what, limit=20, need="gpu"):
    return gpu_check.Check(what, limit, lambda log, most, environment: c.command(
        [gpu_check.LTRAIN, *what.split()], log, most, **environment) and None, need)


def results(c):
    with open(os.path.join(c.out, "results.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_results_are_on_disk_as_they_come(checks):
    for n, (what, result, why) in enumerate([("good", "passed", ""), ("left", "skipped", "no such card"),
                                             ("bad", "failed", "exit code 70: ltrain: broken; with synchronous launches: "
                                              "exit code 70: ltrain: broken"),
                                             ("late", "failed", "exit code 71: no output; passed with synchronous launches")]):
        checks.several([check(checks, what)], 1)
        line = results(checks)[n]
        assert (line["name"], line["result"], line["why"]) == (what, result, why)
    assert checks.table() == {"passed": 1, "skipped": 1, "failed": 2}
    assert os.path.getsize(os.path.join(checks.out, "logs.tar.xz")) > 0


def test_a_check_ends_at_its_limit_with_all_that_it_started(checks):
    began = time.monotonic()
    checks.several([check(checks, "hang", 2, "cpu")], 1)
    assert time.monotonic() - began < 15
    (line,) = results(checks)
    assert (line["result"], line["why"]) == ("timed out", "ended after 2 s")
    child = int(open(os.path.join(checks.work, "child"), encoding="utf-8").read())
    for _ in range(50):
        try:
            with open(f"/proc/{child}/stat", encoding="utf-8") as stat:
                if stat.read().split()[2] == "Z":
                    break
        except FileNotFoundError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("its child lives on")


def test_without_a_gpu_jobs_are_planned_and_skipped_by_name(checks):
    checks.missing["gpu"] = "no GPU: none here"
    checks.several([check(checks, "run a.yaml"), check(checks, "run a.yaml wrong=1"), check(checks, "bad")], 1)
    skipped, refused, other = results(checks)
    assert (skipped["result"], skipped["why"]) == ("skipped", "no GPU: none here")
    assert (refused["result"], refused["why"]) == ("failed", "its plan: exit code 64: ltrain: wrong = 1: not known")
    assert other["result"] == "skipped"


def test_what_time_is_left_for_nothing_is_not_run(checks):
    checks.o.seconds = 3
    checks.several([check(checks, "good")], 1)
    assert results(checks)[0]["result"] == "not run"


def test_a_job_without_output_is_a_hang_and_is_not_tried_again(checks, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "HANG_SECONDS", 1)
    checks.several([check(checks, f"hang output_dir={tmp_path}", limit=50)], 1)
    line = results(checks)[0]
    assert (line["result"], line["why"]) == ("timed out", "hangs: no output for 1 s")
    assert line["seconds"] < 10


def test_memcheck_takes_one_kernel_after_another(checks, tmp_path, monkeypatch):
    cases = tmp_path / "test_cuda"
    cases.write_text("#!/bin/sh\nprintf '%s\\n' '  sums, of rows' '  a product'\n")
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho \"$6\" >> tried\ncase $6 in *product) echo 'invalid read'; exit 1;; esac\n")
    for program in (cases, tool):
        program.chmod(0o755)
    monkeypatch.setattr(gpu_check, "TEST_CUDA", str(cases))
    checks.sanitizer = str(tool)
    checks.several(gpu_check.sanitizer(checks), 1)
    found = {line["name"]: (line["result"], line["why"]) for line in results(checks)}
    assert found == {"compute-sanitizer racecheck: attention on tensor cores": ("passed", ""),
                     "compute-sanitizer memcheck: sums, of rows": ("passed", ""),
                     "compute-sanitizer memcheck: a product": ("failed", "exit code 1: invalid read")}
    with open(os.path.join(checks.work, "tried"), encoding="utf-8") as lines:
        assert lines.read().splitlines() == ["attention on tensor cores*", "sums\\, of rows", "a product"]
    checks.missing["sanitizer"] = "not there"
    assert [k.name for k in gpu_check.sanitizer(checks)] == ["compute-sanitizer racecheck: attention on tensor cores",
                                                             "compute-sanitizer memcheck: sums, of rows"]
