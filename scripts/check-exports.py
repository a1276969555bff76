#!/usr/bin/env python3
"""Reads what `ltrain plan --export torchtitan` and deepspeed write by these programs' own parsers.

Usage: scripts/check-exports.py torchtitan|deepspeed [LTRAIN], in an environment with torchtitan 0.2.2 (and tyro), or
with DeepSpeed. Exports every recipe of recipes/, has each read, and compares what was understood with the recipe.
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def torchtitan(path):
    from torchtitan.config import ConfigManager
    config = ConfigManager().parse_args(["--job.config_file", str(path)])
    return {"train.global_batch_size": config.training.global_batch_size,
            "train.train_steps": config.training.steps,
            "data.seq_length": config.training.seq_len,
            "optimizer.lr": config.optimizer.lr,
            "parallel.tensor": config.parallelism.tensor_parallel_degree,
            "parallel.pipeline": config.parallelism.pipeline_parallel_degree,
            "parallel.context": config.parallelism.context_parallel_degree}


def deepspeed(path):
    from deepspeed.runtime.config import DeepSpeedConfig
    given = json.loads(path.read_text())
    ranks = given["train_batch_size"] // given["train_micro_batch_size_per_gpu"]

    class Ranks:  # of the launch
        def get_data_parallel_world_size(self):
            return ranks

    config = DeepSpeedConfig(given, mpu=Ranks())
    return {"train.global_batch_size": config.train_batch_size,
            "train.micro_batch_size": config.train_micro_batch_size_per_gpu,
            "train.clip_grad": config.gradient_clipping,
            "parallel.zero_stage": config.zero_optimization_stage,
            "optimizer.lr": config.optimizer_params["lr"]}


def main():
    target, ltrain = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "build/ltrain"
    reader = {"torchtitan": torchtitan, "deepspeed": deepspeed}[target]
    wrong = compared = 0
    for recipe in sorted(pathlib.Path("recipes").glob("*.yaml")):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / ("out.toml" if target == "torchtitan" else "out.json")
            subprocess.run([ltrain, "plan", recipe, "--export", target, "--output", path], check=True,
                           stderr=subprocess.DEVNULL)
            understood = reader(path)
        shown = json.loads(subprocess.run([ltrain, "recipe", "show", recipe, "--json"], check=True,
                                          capture_output=True, text=True).stdout)
        for key, value in understood.items():
            section, name = key.split(".")
            compared += 1
            if shown[section][name] != value:
                wrong += 1
                print(f"{recipe}: {key} = {shown[section][name]}, read as {value}")
    print(f"{target}: {compared} values compared, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
