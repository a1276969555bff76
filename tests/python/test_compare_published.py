"""scripts/compare.sh published: its arithmetic, its rule and its data."""

import importlib.util
import json
import pathlib

PEERS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts/compare"
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


def test_trainers_of_rows_are_built_in():
    data = json.loads((PEERS / "published_measurements.json").read_text())
    stacks = {published.software(row) + " " + row["machine"] for row in data["rows"]}
    for stack, trainer in data["trainers"].items():
        assert stack in stacks
        assert (published.TRAINERS / (trainer + ".yaml")).exists()
    # The trainer that such rows are planned with has no fitted constant.
    assert "value" not in (published.TRAINERS / (published.AS_LTRAIN + ".yaml")).read_text()


def test_files_with_other_constants():
    for path, figures in ((published.DEVICES / "h100.yaml", {"under_load": 0.5}),
                          (published.TRAINERS / "llm-foundry-2023.yaml", {"matmul": 0.7, "traffic": 3})):
        copy = pathlib.Path(published.file_with(path, figures))
        try:
            text = copy.read_text()
            for name, value in figures.items():
                assert "%s: {value: %g, " % (name, value) in text
            assert len(text.splitlines()) == len(path.read_text().splitlines())
        finally:
            copy.unlink()
