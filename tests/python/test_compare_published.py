"""scripts/compare-published.sh: its arithmetic, its rule and its data."""

import importlib.util
import json
import pathlib

PEERS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts/peers"
spec = importlib.util.spec_from_file_location("compare_published", PEERS / "compare_published.py")
published = importlib.util.module_from_spec(spec)
spec.loader.exec_module(published)


def test_every_other_row_of_a_machine_is_fitted():
    rows = [{"machine": m} for m in ("a", "b", "a", "a", "b")]
    assert [r["fitted"] for r in published.numbered(rows)] == [True, True, False, True, False]


def test_ratio_and_error():
    row = {"gpus": 8, "tokens_per_second_per_gpu": 100.0}
    assert published.ratio(row, {"tokens_per_second": 880.0}) == 1.1
    assert abs(published.mean_error([1.1, 0.8]) - 0.15) < 1e-12


def test_rows_name_their_source_and_machine():
    data = json.loads((PEERS / "published_measurements.json").read_text())
    assert len(data["rows"]) >= 25
    for row in data["rows"]:
        assert row["source"] and row["model"] in data["models"]
        assert (published.DEVICES / (row["machine"] + ".yaml")).exists()
        assert row["tokens_per_second_per_gpu"] > 0 and row["global_batch"] % row["micro_batch"] == 0


def test_a_profile_with_another_constant():
    path = pathlib.Path(published.profile_with("h100", 0.5))
    try:
        assert "under_load: {value: 0.5, " in path.read_text()
    finally:
        path.unlink()
