#!/usr/bin/env python3
"""Writes tests/golden/trl/reward: the head of a reward model on the tiny Llama of tests/golden/trl, and the first 20 steps of
TRL's RewardTrainer on its pairs, all in one batch; and an adapter of PEFT with such a head. The index names the Llama's
file base.safetensors: the test puts it there."""
import importlib.util
import json
import pathlib
import sys
import tempfile

from golden_tools import GOLDEN, run_with, write_safetensors

there = importlib.util.spec_from_file_location("pairs", pathlib.Path(__file__).with_name("make-preference-golden.py"))
common = importlib.util.module_from_spec(there)
there.loader.exec_module(common)
FOLDER = GOLDEN / "trl" / "reward"
SETTINGS = common.SETTINGS
RUNS = {
    "plain": {},
    "centred": {"center_rewards_coefficient": 0.1},
    "lora": {"lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}},
}


def head():
    """The first values of score.weight."""
    import torch

    return (torch.arange(1, 33, dtype=torch.float64).cos() / 4).float().reshape(1, 32)


def reward_model():
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(common.FOLDER, num_labels=1, dtype="float32")
    model.score.weight.data.copy_(head())
    return model


def train(folder, options):
    import torch
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    rows = []
    options = dict(options)
    lora = options.pop("lora", None)

    class Recorder(RewardTrainer):
        def compute_loss(self, *arguments, **more):
            loss, outputs = super().compute_loss(*arguments, **{**more, "return_outputs": True})
            chosen, rejected = outputs.logits.detach().double().squeeze(-1).chunk(2)
            rows.append({"loss": float(loss.detach().double()), "chosen": float(chosen.mean()), "rejected": float(rejected.mean()),
                         **{key: self._metrics["train"][key][-1] for key in ("accuracy", "margin")}})
            return (loss, outputs) if more.get("return_outputs") else loss

        def log(self, logs, *arguments, **more):
            if rows and "grad_norm" in logs:
                rows[-1]["grad_norm"] = float(logs["grad_norm"])
            return super().log(logs, *arguments, **more)

    tokenizer = common.byte_tokenizer(folder)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)  # no text ends with it, and texts end with the end of a text
    with tempfile.TemporaryDirectory() as out:
        config = RewardConfig(output_dir=out, per_device_train_batch_size=SETTINGS["batch"], gradient_accumulation_steps=1,
                              max_steps=common.STEPS, learning_rate=SETTINGS["lr"], lr_scheduler_type="constant",
                              weight_decay=0.0, adam_beta1=SETTINGS["beta1"], adam_beta2=SETTINGS["beta2"],
                              adam_epsilon=SETTINGS["eps"], max_grad_norm=SETTINGS["clip"], bf16=False, fp16=False, use_cpu=True,
                              report_to=[], logging_steps=1, save_strategy="no", gradient_checkpointing=False, seed=1,
                              max_length=None, **options)
        peft = None
        if lora:
            from peft import LoraConfig

            peft = LoraConfig(task_type="SEQ_CLS", modules_to_save=["score"], **lora)
        trainer = Recorder(model=reward_model(), args=config, processing_class=tokenizer, peft_config=peft,
                           train_dataset=Dataset.from_list(list(common.pairs())))
        if lora:
            common.begin_adapter(trainer.model)
            common.save_adapter(trainer.model, FOLDER / "adapter")
        trainer.train()
    return rows


def main():
    run_with(common.PACKAGES, __file__)
    import torch
    import transformers
    import trl
    from safetensors import safe_open

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    write_safetensors(FOLDER / "score.safetensors", {"score.weight": head()}, {"format": "pt"})
    with safe_open(common.FOLDER / "model.safetensors", "pt") as file:
        places = {name: "base.safetensors" for name in file.keys()}
    index = {"metadata": {}, "weight_map": {**places, "score.weight": "score.safetensors"}}
    (FOLDER / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    result = {"versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
              "settings": SETTINGS, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
            result["runs"][name] = {"options": options, "steps": train(folder, options)}
    (FOLDER / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
