#!/usr/bin/env python3
"""Plans beside published measurements, by their published layouts (scripts/compare/published_measurements.json).
Usage: scripts/compare.sh published [--fit] [--json FILE]

Rows of scripts/compare/published_measurements.json are numbered within their machine: even ones (0, 2, ...) may be used
to fit constants, odd ones are held out. The numbering was chosen before any row was planned. --fit prints the best constants on
the fitted rows: `under_load` of each card on rows planned as ltrain's steps, and what a trainer's file calls fitted.
They are written into the profiles by hand, with their source. Rows of software that has no trainer of its own are planned
as ltrain's steps with the kernels that the published rates are of (`published-kernels`).
"""
# build: ltrain

import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DEVICES = HERE.parent.parent / "runtime/machines/devices"
TRAINERS = HERE.parent.parent / "runtime/machines/trainers"
AS_LTRAIN = "published-kernels"  # a trainer without constants


def recipe(row, model):
    lines = ["device: cuda", "precision: " + row.get("precision", "bf16"), "launch: {ranks_per_node: %d}" % min(8, row["gpus"])]
    lines.append("data: {seq_length: %d}" % row["seq"])
    lines.append("model: {%s}" % ", ".join("%s: %s" % (k, str(v).lower() if isinstance(v, bool) else v) for k, v in model.items()))
    lines.append("train: {micro_batch_size: %d, global_batch_size: %d, eval_interval: 0}" % (row["micro_batch"], row["global_batch"]))
    return "\n".join(lines) + "\n"


def plan(program, row, model, profile, trainer):
    """Planned tokens a second and GPU and the whole plan; a string says why there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(recipe(row, model))
        file.flush()
        command = [program, "plan", file.name, "--json", "--profile", profile] + row["settings"]
        command += ["--trainer", trainer] if trainer else []
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 78):  # 78: it does not fit, which the plan says too
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout)


def numbered(rows):
    """Rows with `fitted` set: every other one of a machine, the first among them."""
    seen = collections.Counter()
    for row in rows:
        row["fitted"] = seen[row["machine"]] % 2 == 0
        seen[row["machine"]] += 1
    return rows


def ratio(row, planned):
    return planned["tokens_per_second"] / row["gpus"] / row["tokens_per_second_per_gpu"]


def mean_error(ratios):
    return statistics.mean(abs(r - 1) for r in ratios) if ratios else float("nan")


def file_with(path, figures):
    """A copy of a profile's file with other values of figures by name."""
    text = path.read_text()
    for name, value in figures.items():
        text = re.sub(r"\b%s: \{value: [0-9.e+-]+" % name, "%s: {value: %g" % (name, value), text)
    file = tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False)
    file.write(text)
    file.close()
    return file.name


def run(program, data, rows, workers, profile_of=lambda row: row["machine"], trainer_of=lambda row: row["trainer"]):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda row: plan(program, row, data["models"][row["model"]], profile_of(row), trainer_of(row)), rows))


def error_with(program, data, rows, workers, path, figures):
    """Mean error of `rows` planned with a copy of a card's or a trainer's file that has `figures`."""
    copy = file_with(path, figures)
    instead = "trainer_of" if path.parent == TRAINERS else "profile_of"
    plans = run(program, data, rows, workers, **{instead: lambda _: copy})
    os.unlink(copy)
    return mean_error([ratio(r, p) for r, p in zip(rows, plans) if not isinstance(p, str)])


def fit(program, data, rows, workers):
    fitted = [row for row in rows if row["fitted"]]
    for machine in sorted({row["machine"] for row in fitted if row["trainer"] == AS_LTRAIN}):
        mine = [row for row in fitted if row["machine"] == machine and row["trainer"] == AS_LTRAIN]
        path = DEVICES / (machine + ".yaml")
        error, best = min((error_with(program, data, mine, workers, path, {"under_load": step / 100}), step / 100)
                          for step in range(60, 101, 4))
        print("%-16s under_load %.2f, mean error on %d fitted rows %.1f %%" % (machine, best, len(mine), 100 * error))
    grids = {"matmul": [step / 100 for step in range(60, 101, 4)], "traffic": [1, 1.5, 2, 2.5, 3, 4, 5]}
    for trainer in sorted({row["trainer"] for row in fitted} - {AS_LTRAIN}):
        mine = [row for row in fitted if row["trainer"] == trainer]
        path = TRAINERS / (trainer + ".yaml")
        names = [name for name in grids if re.search(r"\b%s: .*fitted" % name, path.read_text())]
        figures, error = {}, error_with(program, data, mine, workers, path, {})
        for name in 2 * names:  # in turns
            tried = [(error_with(program, data, mine, workers, path, {**figures, name: value}), value) for value in grids[name]]
            error, figures[name] = min(tried)
        print("%-16s %s, mean error on %d fitted rows %.1f %%" % (trainer, figures, len(mine), 100 * error))


def software(row):
    return row["source"].split(",")[0]


def shares(planned):
    """What the first rank's step is made of, as shares of it: where an error may come from."""
    rank, step = planned["ranks"][0], planned["step_seconds"]
    kinds = collections.Counter()
    for op in rank["ops"]:
        name = op["name"]
        kind = "matmul" if "matmul" in name else "attention" if name.startswith("attention") else None
        if kind is None:
            kind = None if op["flops"] == 0 and op["bytes"] > 0 and name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv", "send_recv", "broadcast") else "memory"
        if kind:
            kinds[kind] += op["seconds"]
    return kinds["matmul"] / step, kinds["attention"] / step, kinds["memory"] / step, rank["exposed_comm_seconds"] / step


def memory_table(results):
    """Planned memory of the rank that takes most beside the published peak of all ranks."""
    print("\n## Memory\n")
    print("Published: the most that PyTorch's allocator had reserved on any rank (`max_reserved`). Planned: all that the rank")
    print("takes which takes most, with the logits of a micro-batch whole (`train.logits_chunk_size`), as published runs had them.\n")
    print("| model | GPUs | layout | published, GiB | planned, GiB | ratio |\n|---|---|---|---|---|---|")
    for r in results:
        layout = " ".join(s.replace("parallel.", "") for s in r["settings"])
        print("| %s, %d | %d | %s, %s | %.1f | %.1f | %.2f |" % (
            r["model"], r["seq"], r["gpus"], r.get("precision", "bf16"), layout, r["memory_gib"], r["planned_gib"], r["planned_gib"] / r["memory_gib"]))
    ratios = [r["planned_gib"] / r["memory_gib"] for r in results]
    print("\n%d rows: mean of absolute errors %.1f %%, mean ratio %.2f." % (len(ratios), 100 * mean_error(ratios), statistics.mean(ratios)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--source", default="", help="--fit: of rows whose source has this text")
    parser.add_argument("--json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    data = json.loads((HERE / "published_measurements.json").read_text())
    rows = numbered(data["rows"])
    for row in rows:
        row["trainer"] = data["trainers"].get(software(row) + " " + row["machine"], AS_LTRAIN)
    if options.fit:
        return fit(options.program, data, [row for row in rows if options.source in row["source"]], options.jobs)
    plans = run(options.program, data, rows, options.jobs)
    own = run(options.program, data, rows, options.jobs, trainer_of=lambda _: "")
    results, failed = [], []
    print("# Plans beside published measurements\n")
    print("By `scripts/compare.sh published`, %s, of %d rows of scripts/compare/published_measurements.json. Ratio: planned" % (
        datetime.date.today().isoformat(), len(rows)))
    print("over published tokens/s/GPU; above 1: the plan is faster. Planned: `ltrain plan --trainer` with what the row names,")
    print("that is the steps of ltrain's layout with the kernels of the software that was measured; published-kernels: with those that")
    print("the published rates are of, whose backward of attention has five products where ltrain's, which is deterministic, has seven.")
    print("Own: the ratio of ltrain's own plan, which says how much faster it expects to be. Rows are numbered within")
    print("their card; even ones may be used for fits, odd ones are not. Fitted: one constant a card, `under_load`, on all even rows")
    print("of the A100, the first two of the H100 at 500 W, and on NVIDIA's even rows of the H100; `matmul` and `traffic` of")
    print("llm-foundry-2023 on its even rows of the H100. That each software has constants of its own was chosen after the first")
    print("ratios were seen. Rows of one model on more GPUs are nearly the same row.\n")
    print("| machine | model | GPUs | layout | trainer | published, tokens/s/GPU | planned | ratio | own | fitted | matmul, attention, memory, exposed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row, planned, ours in zip(rows, plans, own):
        if isinstance(planned, str) or isinstance(ours, str):
            failed.append((row, planned if isinstance(planned, str) else ours))
            continue
        r = ratio(row, planned)
        layout = " ".join(s.replace("parallel.", "") for s in row["settings"])
        print("| %s | %s, %d | %d | %s, micro %d, global %d | %s | %.4g | %.4g | %.2f | %.2f | %s | %s %% |" % (
            row["machine"], row["model"], row["seq"], row["gpus"], layout, row["micro_batch"], row["global_batch"], row["trainer"],
            row["tokens_per_second_per_gpu"], planned["tokens_per_second"] / row["gpus"], r, ratio(row, ours),
            "yes" if row["fitted"] else "", ", ".join("%.0f" % (100 * s) for s in shares(planned))))
        memory = max(rank["memory_bytes"]["total"] for rank in planned["ranks"]) / 2**30
        results.append(dict(row, planned=planned["tokens_per_second"] / row["gpus"], ratio=r, own_ratio=ratio(row, ours),
                            fits=planned["fits"], planned_gib=memory))
    print()
    for row, why in failed:
        print("not planned: %s %s on %d: %s" % (row["machine"], row["model"], row["gpus"], why))
    print("| rows | number | mean of absolute errors | mean ratio | smallest | largest | mean of absolute errors, own |\n|---|---|---|---|---|---|---|")

    def summary(name, chosen):
        ratios = [r["ratio"] for r in chosen]
        if ratios:
            print("| %s | %d | %.1f %% | %.2f | %.2f | %.2f | %.1f %% |" % (
                name, len(ratios), 100 * mean_error(ratios), statistics.mean(ratios), min(ratios), max(ratios),
                100 * mean_error([r["own_ratio"] for r in chosen])))

    summary("fitted", [r for r in results if r["fitted"]])
    summary("not fitted", [r for r in results if not r["fitted"]])
    for machine in sorted({r["machine"] for r in results}):
        summary(machine + ", not fitted", [r for r in results if r["machine"] == machine and not r["fitted"]])
    for who in sorted({software(r) for r in results}):
        summary(who + ", not fitted", [r for r in results if software(r) == who and not r["fitted"]])
    memory_table([r for r in results if "memory_gib" in r])
    print("\nWhat explains the rest:\n")
    for note in data["notes"]:
        print("- " + note)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
