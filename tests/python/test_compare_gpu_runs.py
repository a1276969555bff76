"""scripts/compare/compare_gpu_runs.py: what became slower between two runs of gpu-check on one card."""
import json

import compare_gpu_runs
from conftest import ROOT, shell

SCRIPT = f"{ROOT}/scripts/compare/compare_gpu_runs.py"


def write(path, *lines):
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def step(name, ms, ops=(), card="NVIDIA H200"):
    return {"name": name, "card": card, "step_ms": ms, "ops": {k: {"ms": v, "calls": 1} for k, v in dict(ops).items()}}


def test_slower_steps_and_ops_are_listed_and_faster_or_tiny_ones_are_not(tmp_path):
    old = write(tmp_path / "old", step("1B", 500, {"rope": 4.0, "adamw": 9.0, "fill_zero": 0.01}), step("gone", 1))
    new = write(tmp_path / "new", step("1B", 505, {"rope": 4.5, "adamw": 8.0, "fill_zero": 0.1}))
    o = shell(f"{SCRIPT} {old} {new}")
    assert o.returncode == 1, o.stdout + o.stderr
    assert "slower: 1B: rope: 4.00 -> 4.50 ms (+12.5 %)" in o.stdout
    assert "not in the new run: gone" in o.stdout
    assert "1B: 500" not in o.stdout and "adamw" not in o.stdout and "fill_zero" not in o.stdout
    assert shell(f"{SCRIPT} {old} {new} --percent 20").returncode == 0


def test_runs_of_two_cards_are_refused(tmp_path):
    old, new = write(tmp_path / "old", step("1B", 500)), write(tmp_path / "new", step("1B", 500, card="NVIDIA H100"))
    o = shell(f"{SCRIPT} {old} {new}")
    assert o.returncode != 0 and "two cards: NVIDIA H100, NVIDIA H200" in o.stderr


def test_the_measurements_that_are_kept_can_be_compared():
    lines = compare_gpu_runs.read(f"{ROOT}/scripts/compare/results/h200_2026-11-26_steps.jsonl")
    assert len(lines) > 15 and compare_gpu_runs.slower(lines, lines, 0) == []
