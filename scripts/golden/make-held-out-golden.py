#!/usr/bin/env python3
"""Writes tests/golden/trl/held-out.json: what TRL's DPOTrainer, KTOTrainer and RewardTrainer say of held-out texts after each
of 6 steps on the texts of tests/golden/trl; and the texts, beside it.
All held-out texts are one batch, so that TRL's means over a batch are ltrain's over a set. Margins of single pairs: the
losses of RewardTrainer in training too."""
import importlib.util
import json
import pathlib
import sys
import tempfile

from golden_tools import GOLDEN, run_with

there = importlib.util.spec_from_file_location("reward", pathlib.Path(__file__).with_name("make-reward-golden.py"))
reward = importlib.util.module_from_spec(there)
there.loader.exec_module(reward)
common = reward.common
FOLDER = GOLDEN / "trl"
SETTINGS = common.SETTINGS
STEPS, COUNT = 6, 5
MARGINS = [0.5, 0.0, -0.25, 1.5, 2.0, 0.125, 0.0, 0.75]


def held_pairs():
    for i in range(COUNT):
        yield {"prompt": f"After {20 + i} come:", "chosen": f" {21 + i}, {22 + i}.", "rejected": " " + "no" * (1 + i % 3)}


def held_labelled():
    for i, pair in enumerate(held_pairs()):
        yield {"prompt": pair["prompt"], "completion": pair["chosen" if i % 2 == 0 else "rejected"], "label": i % 2 == 0}


def with_margins(pairs):
    for margin, pair in zip(MARGINS, pairs):
        yield {**pair, "margin": margin}


def recorded(trainer):
    class Recorder(trainer):
        def __init__(self, *arguments, **more):
            self.evaluations, self.losses = [], []
            super().__init__(*arguments, **more)

        def compute_loss(self, model, inputs, return_outputs=False, **more):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
            if model.training:
                self.losses.append(float(loss.detach().double()))
            elif trainer.__name__ == "RewardTrainer":
                chosen, rejected = outputs.logits.detach().double().squeeze(-1).chunk(2)
                self.scores = {"eval_rewards/chosen": float(chosen.mean()), "eval_rewards/rejected": float(rejected.mean())}
            return (loss, outputs) if return_outputs else loss

        def log(self, logs, *arguments, **more):
            super().log(logs, *arguments, **more)
            if "eval_loss" in logs:
                all_logs = {**logs, **self.state.log_history[-1], **getattr(self, "scores", {})}
                wanted = ("eval_loss", "eval_rewards/", "eval_logps/", "eval_kl", "eval_accuracy", "eval_margin")
                self.evaluations.append({key: float(value) for key, value in all_logs.items() if key.startswith(wanted)})

    return Recorder


def train(folder, config, trainer, model, tokenizer, texts, held, options):
    import torch
    from datasets import Dataset

    with tempfile.TemporaryDirectory() as out:
        arguments = config(output_dir=out, per_device_train_batch_size=SETTINGS["batch"], per_device_eval_batch_size=COUNT,
                           max_steps=STEPS, learning_rate=SETTINGS["lr"], lr_scheduler_type="constant", weight_decay=0.0,
                           adam_beta1=SETTINGS["beta1"], adam_beta2=SETTINGS["beta2"], adam_epsilon=SETTINGS["eps"],
                           max_grad_norm=SETTINGS["clip"], bf16=False, fp16=False, use_cpu=True, report_to=[], logging_steps=1,
                           save_strategy="no", eval_strategy="steps", eval_steps=1, gradient_checkpointing=False, seed=1,
                           max_length=None, **options)
        torch.manual_seed(1)
        run = recorded(trainer)(model=model, args=arguments, processing_class=tokenizer, train_dataset=Dataset.from_list(texts),
                                eval_dataset=Dataset.from_list(held))
        run.train()
    return {"losses": run.losses, "evaluations": run.evaluations}


def main():
    run_with(common.PACKAGES, __file__)
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    texts = {"held-out-pairs": list(held_pairs()), "held-out-labelled": list(held_labelled()),
             "margins": list(with_margins(common.pairs())), "held-out-margins": list(with_margins(held_pairs()))}
    for name, rows in texts.items():
        (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {"versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
              "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        byte, scored = common.byte_tokenizer(folder), common.byte_tokenizer(folder)
        scored.pad_token = scored.convert_ids_to_tokens(0)
        policy = {"beta": common.BETA, "disable_dropout": True, "model_init_kwargs": {"dtype": "float32"}}

        def add(name, kind, model, tokenizer, training, held, options):
            result["runs"][name] = train(folder, getattr(trl, kind + "Config"), getattr(trl, kind + "Trainer"), model, tokenizer,
                                         training, held, options)

        pairs, labelled = list(common.pairs()), list(common.labelled())
        add("dpo", "DPO", str(FOLDER), byte, pairs, texts["held-out-pairs"], policy)
        add("dpo+sft", "DPO", str(FOLDER), byte, pairs, texts["held-out-pairs"],
            {**policy, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]})
        add("kto", "KTO", str(FOLDER), byte, labelled, texts["held-out-labelled"], policy)
        add("reward", "Reward", reward.reward_model(), scored, pairs, texts["held-out-pairs"], {})
        add("margins", "Reward", reward.reward_model(), scored, texts["margins"], texts["held-out-margins"],
            {"center_rewards_coefficient": 0.1})
    (FOLDER / "held-out.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
