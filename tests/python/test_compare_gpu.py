"""scripts/compare.sh torch-gpu and scripts/compare.sh attention-gpu without a GPU: what they would run, the recipes, and the
arithmetic of their tables."""
import ast
import json
import os

import compare_torch_gpu
import measure
import pytest
from compare_attention_gpu import SHAPES, row_of
from conftest import ROOT, ltrain, shell
from gpu_cases import idle_share, nsys_intervals, op_seconds, peak_of, trace_intervals


def dry_run(script):
    o = shell(f"{script} --dry-run")
    assert o.returncode == 0, o.stderr
    return json.loads(o.stdout)


def test_whole_steps_the_matrix_recipes_that_ltrain_takes_and_their_operations():
    cases = dry_run("scripts/compare.sh torch-gpu")
    assert len(cases) == 3
    for c in cases:
        commands = {json.dumps(v["command"]) + v.get("matmul", "") for v in c["variants"]}
        assert len(commands) == 28  # all different: 4 of ltrain, 3 * 2 * 2 * 2 of PyTorch
        o = ltrain("plan", "recipes/gpt2-124m.yaml", *c["recipe"], "--profile", "h200", "--json")
        # 78: by the datasheet's 141e9 bytes the case of 8B lacks 3 GiB; an H200 shows about 139 GiB.
        assert o.returncode == 0 or (o.returncode == 78 and c["case"] == "llama-8b"), o.stderr
        plan = json.loads(o.stdout)
        assert plan["tokens_per_step"] == c["tokens_per_step"]
        # The plan counts the scores that attention's backward computes again; the comparison does not.
        flops = plan["mfu"] * plan["step_seconds"] * plan["peak_flops"] / plan["tokens_per_step"]
        assert 1.0 < flops / c["flops_per_token"] < 1.025
    assert shell("scripts/compare.sh torch-gpu --dry-run --case llama-9b").returncode == 2


def test_attention_alone_shapes_that_ltrain_takes_and_their_operations(tmp_path):
    shapes = dry_run("scripts/compare.sh attention-gpu")
    assert len(shapes) == 10
    trace = tmp_path / "trace.json"
    for s in shapes:
        assert len(s["torch"]) == 2
        o = ltrain("plan", "recipes/gpt2-124m.yaml", *s["ltrain"][4:], "--profile", "h200", "--trace", str(trace))
        assert o.returncode == 0, o.stderr
        events = json.loads(trace.read_text())["traceEvents"]
        flops = sum(e["args"]["flops"] for e in events if e["name"].startswith("attention"))
        assert flops == pytest.approx(s["flops"], rel=0.002)  # the plan counts the diagonal whole


def test_times_out_of_traces(tmp_path):
    def thread(tid, name):
        return {"name": "thread_name", "ph": "M", "tid": tid, "args": {"name": name}}

    def event(tid, name, ts, dur):
        return {"name": name, "ph": "X", "tid": tid, "ts": ts, "dur": dur}

    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [
        thread(0, "compute"), thread(1, "host"), event(0, "attention_forward", 10, 4),
        event(0, "attention_forward", 20, 5), event(1, "step", 0, 40)]}))
    assert trace_intervals(str(path)) == [(10, 14), (20, 25)]
    assert op_seconds(str(path))["attention_forward"] == pytest.approx(9e-6)


def test_rows_of_attention():
    row = row_of(SHAPES[0], {"ltrain, native kernels": [4e-3], "ltrain, cuDNN": [2e-3], "PyTorch, cudnn": [3e-3],
                             "PyTorch, flash": "out of memory"})
    assert row[-1] == "**1.500**" and "out of memory" in row[-2], row
    row = row_of(SHAPES[0], {"ltrain, native kernels": [4e-3], "ltrain, cuDNN": "no cuDNN", "PyTorch, cudnn": [3e-3]})
    assert row[-1] == "**0.750**" and "no cuDNN" in row[-3], row


def test_the_idle_share_tables_of_nsys_and_tables_of_results():
    assert idle_share([(0, 10), (5, 12), (15, 20)]) == pytest.approx(0.15)
    assert idle_share([(5, 12), (0, 20)]) == 0 and idle_share([]) is None
    text = 'Processing...\nStart (ns),Duration (ns),Name\n100,50,a\n160,40,"b, c"\n'
    assert nsys_intervals(text) == [(100, 150), (160, 200)]
    with pytest.raises(ValueError):
        nsys_intervals("ERROR: no data")
    assert peak_of("NVIDIA H200") == 989e12 and peak_of("NVIDIA GH200 480GB") == 989e12
    assert peak_of("Tesla T4") is None

    def row(is_ltrain, rate):
        return {"variant": "v", "ltrain": is_ltrain, "tokens_per_sec": measure.spread([rate]), "mfu": 0.5,
                "first_step_seconds": None, "idle": "not measured"}

    rows = compare_torch_gpu.table({"rows": [row(True, 120), row(False, 100), row(False, 80)]})
    assert rows[1][-1] == "**1.200**" and rows[1][2] == "50.0 %" and rows[2][-1] == "", rows


def test_the_peer_is_python():
    ast.parse((ROOT / "scripts" / "compare" / "programs" / "torch_gpu.py").read_text())  # it needs PyTorch to run


@pytest.mark.skipif(os.access("/dev/nvidiactl", os.R_OK), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_an_error():
    assert shell("scripts/compare.sh torch-gpu --out /nowhere", PATH="/usr/bin/nowhere:/bin:/usr/bin").returncode != 0
