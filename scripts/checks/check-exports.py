#!/usr/bin/env python3
"""Reads what `ltrain plan --export torchtitan`, deepspeed and nemo write as these programs do.

Usage: scripts/checks/check-exports.py torchtitan|deepspeed [LTRAIN], in an environment with torchtitan 0.2.2 (and tyro), or
with DeepSpeed: their own parsers read every recipe of recipes/, and what they understood is compared with the recipe.
       scripts/checks/check-exports.py nemo MEGATRON_LM MEGATRON_BRIDGE [LTRAIN], with the two folders of sources, since
Megatron-Bridge cannot be imported without a GPU's packages: every field that is written has to be one of the dataclass
of its section, with a value of its type, one of its choices, and presets and activations have to be known there.
"""
import ast
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

    class Ranks:  # the launch's
        def get_data_parallel_world_size(self):
            return ranks

    config = DeepSpeedConfig(given, mpu=Ranks())
    return {"train.global_batch_size": config.train_batch_size,
            "train.micro_batch_size": config.train_micro_batch_size_per_gpu,
            "train.clip_grad": config.gradient_clipping,
            "parallel.zero_stage": config.zero_optimization_stage,
            "optimizer.lr": config.optimizer_params["lr"]}


# Sections of ConfigContainer, and the files in which their dataclasses stand.
NEMO_SECTIONS = {"model": "GPTModelProvider", "train": "TrainingConfig", "optimizer": "OptimizerConfig",
                 "scheduler": "SchedulerConfig", "dataset": "GPTDatasetConfig", "ddp": "DistributedDataParallelConfig",
                 "dist": "DistributedInitConfig", "checkpoint": "CheckpointConfig", "logger": "LoggerConfig",
                 "rng": "RNGConfig"}
NEMO_FILES = ["megatron/core/transformer/transformer_config.py", "megatron/core/model_parallel_config.py",
              "megatron/core/optimizer/optimizer_config.py", "megatron/core/datasets/gpt_dataset.py",
              "megatron/core/distributed/distributed_data_parallel_config.py",
              "megatron/training/config/training_config.py", "megatron/training/config/common_config.py",
              "src/megatron/bridge/models/gpt_provider.py", "src/megatron/bridge/training/config.py"]


class Nemo:
    """Fields, choices, presets and activations of Megatron-Bridge, from its sources and Megatron-LM's."""

    def __init__(self, megatron, bridge):
        self.classes = {}  # name -> [(bases, {field: annotation})], of every file that has such a class
        for file in NEMO_FILES:
            path = pathlib.Path(bridge if file.startswith("src/") else megatron) / file
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    fields = {s.target.id: ast.unparse(s.annotation) for s in node.body if isinstance(s, ast.AnnAssign)}
                    self.classes.setdefault(node.name, []).append(([ast.unparse(b) for b in node.bases], fields))
        training = pathlib.Path(bridge) / "src/megatron/bridge/training/mixed_precision.py"
        self.presets = {f.name for f in ast.parse(training.read_text()).body if isinstance(f, ast.FunctionDef) and
                        any(isinstance(d, ast.Name) and d.id == "register" for d in f.decorator_list)}
        words = pathlib.Path(bridge) / "src/megatron/bridge/utils/activation_map.py"
        self.words = {k.value for n in ast.walk(ast.parse(words.read_text())) if isinstance(n, ast.Dict)
                      for k in n.keys if isinstance(k, ast.Constant)}

    def annotation(self, name, field):
        """The field's type as it is written, of the class or a base; None where there is no such field."""
        for bases, fields in self.classes.get(name, []):
            if field in fields:
                return fields[field]
            for base in bases:
                found = base != name and self.annotation(base, field)
                if found:
                    return found
        return None

    def problem(self, section, field, value):
        """Why Megatron-Bridge would not take this; None where it does."""
        wants = self.annotation(NEMO_SECTIONS.get(section, ""), field)
        if wants is None:
            return "no such field"
        if "Callable" in wants or "dtype" in wants:
            return None if value in self.words else "not in its map of words"
        if value is None:
            return None if "None" in wants or "Optional" in wants else f"null, of type {wants}"
        choices = [n for n in ast.walk(ast.parse(wants)) if isinstance(n, ast.Subscript) and
                   ast.unparse(n.value) == "Literal"]
        if choices and not any(value == c.value for n in choices for c in ast.walk(n) if isinstance(c, ast.Constant)):
            return f"not one of {wants}"
        kind = {bool: "bool", int: "int", float: "float", list: "ist", str: "str"}[type(value)]
        fits = kind in wants or (kind == "int" and "float" in wants) or (kind == "str" and choices)
        return None if fits else f"{value!r}, of type {wants}"

    def read(self, path):
        import yaml
        given = yaml.safe_load(path.read_text())
        preset = given.pop("mixed_precision")
        wrong = [] if preset is None or preset in self.presets else [f"mixed_precision: no preset {preset}"]
        for section, fields in given.items():
            for field, value in fields.items():
                why = self.problem(section, field, value)
                if why:
                    wrong.append(f"{section}.{field}: {why}")
        return wrong, given


def nemo(megatron, bridge, ltrain):
    reader = Nemo(megatron, bridge)
    wrong = compared = 0
    extra = [[], ["precision=bf16", "optimizer.state_dtype=bf16"], ["recompute.granularity=full"]]
    for recipe in sorted(pathlib.Path("recipes").glob("*.yaml")):
        for overrides in extra:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "out.yaml"
                done = subprocess.run([ltrain, "plan", recipe, *overrides, "--export", "nemo", "--output", path],
                                      capture_output=True, text=True)
                if done.returncode:
                    print(f"{recipe} {overrides}: not exported: {done.stderr.splitlines()[-1]}")
                    continue
                problems, given = reader.read(path)
            compared += sum(len(fields) for fields in given.values())
            wrong += len(problems)
            for problem in problems:
                print(f"{recipe} {overrides}: {problem}")
    print(f"nemo: {compared} fields read, {wrong} wrong")
    return 1 if wrong or not compared else 0


def main():
    if sys.argv[1] == "nemo":
        return nemo(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "build/ltrain")
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
