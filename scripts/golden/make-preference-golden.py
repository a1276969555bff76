#!/usr/bin/env python3
"""Writes tests/golden/trl: a tiny Llama, a tiny Qwen3-MoE, preference pairs, and the first 20 losses of TRL's DPOTrainer
for each loss that ltrain has too, of its CPOTrainer and ORPOTrainer; labelled texts, and those of its KTOTrainer. All pairs are one batch, so that TRL's mean over a micro-batch
is ltrain's over pairs, and its rotation of completions within a batch is ltrain's over all texts. The reference of some
runs is the model of tests/golden/distillation (make-distillation-golden.py)."""
import json
import os
import sys
import tempfile

from golden_tools import GOLDEN, run_with

PACKAGES = ["trl==1.16.0", "peft==0.21.2", "transformers==5.24.0", "torch"]
FOLDER = GOLDEN / "trl"
STEPS, BETA = 20, 0.3
SETTINGS = {"batch": 8, "lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "clip": 1.0, "beta": BETA}
RUNS = {
    "sigmoid": {"loss_type": ["sigmoid"]},
    "ipo": {"loss_type": ["ipo"]},
    "hinge": {"loss_type": ["hinge"]},
    "robust": {"loss_type": ["robust"], "label_smoothing": 0.1},
    "sigmoid_norm": {"loss_type": ["sigmoid_norm"]},
    "apo_zero": {"loss_type": ["apo_zero"]},
    "sigmoid+sft": {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
    "reference": {"loss_type": ["sigmoid"], "reference": "distillation"},
}

WITHOUT_REFERENCE = {"simpo": {"simpo_gamma": 0.4}, "orpo": {}}

KTO_RUNS = {
    "kto": {},
    "weights": {"desirable_weight": 0.5, "undesirable_weight": 1.5},
    "apo_zero_unpaired": {"loss_type": "apo_zero_unpaired"},
    "reference": {"reference": "distillation"},
    "lora": {"lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}},
}


def pairs():
    for i in range(8):
        good = ", ".join(str(i + k) for k in range(1, 3 + i % 3))
        bad = ", ".join(str(7 * i + k * k) for k in range(2 + i % 4)) + "!"
        yield {"prompt": f"After {i} come:", "chosen": f" {good}.", "rejected": f" {bad}"}


def labelled():
    """Texts with labels, three in eight undesirable."""
    for i, pair in enumerate(pairs()):
        label = i % 3 != 1
        yield {"prompt": pair["prompt"], "completion": pair["chosen" if label else "rejected"], "label": label}


def byte_tokenizer(folder):
    """Ids of bytes, and 256 for the end of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    vocabulary["<|endoftext|>"] = 256
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = os.path.join(folder, "tokenizer.json")
    tokenizer.save(path)
    return PreTrainedTokenizerFast(tokenizer_file=path, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def tiny_model():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.15, tie_word_embeddings=False,
                         bos_token_id=None, eos_token_id=256, attention_dropout=0.0)
    return LlamaForCausalLM(config).to(torch.float32)


def tiny_experts():
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(8)
    config = Qwen3MoeConfig(vocab_size=257, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
                            norm_topk_prob=True, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=True,
                            bos_token_id=None, eos_token_id=256, attention_dropout=0.0, router_aux_loss_coef=0.0)
    return Qwen3MoeForCausalLM(config).to(torch.float32)


def reference_model(options):
    """The model of another folder that options name; None: TRL takes the initial model."""
    from transformers import AutoModelForCausalLM

    name = options.pop("reference", None)
    return AutoModelForCausalLM.from_pretrained(str(GOLDEN / name), dtype="float32") if name else None


def common(out):
    """Settings of all trainers: a step over all pairs on the CPU in fp32, with a constant learning rate."""
    return dict(output_dir=out, per_device_train_batch_size=SETTINGS["batch"], gradient_accumulation_steps=1, max_steps=STEPS,
                learning_rate=SETTINGS["lr"], lr_scheduler_type="constant", weight_decay=0.0, adam_beta1=SETTINGS["beta1"],
                adam_beta2=SETTINGS["beta2"], adam_epsilon=SETTINGS["eps"], max_grad_norm=SETTINGS["clip"], beta=BETA, bf16=False,
                fp16=False, use_cpu=True, report_to=[], logging_steps=1, save_strategy="no", gradient_checkpointing=False,
                disable_dropout=True, seed=1)


def train(folder, options, start=FOLDER):
    import torch
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = []
    options = dict(options)
    reference = reference_model(options)

    class Recorder(DPOTrainer):
        def compute_loss(self, *arguments, **more):
            got = super().compute_loss(*arguments, **more)
            loss = got[0] if isinstance(got, tuple) else got
            rows.append({"loss": float(loss.detach().double())})
            return got

        def log(self, logs, *arguments, **more):
            for key in ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected", "grad_norm"):
                if rows and key in self._metrics.get("train", {}) and self._metrics["train"][key]:
                    rows[-1][key] = float(self._metrics["train"][key][-1])
            if rows and "grad_norm" in logs:
                rows[-1]["grad_norm"] = float(logs["grad_norm"])
            return super().log(logs, *arguments, **more)

    with tempfile.TemporaryDirectory() as out:
        config = DPOConfig(**common(out), max_length=None, model_init_kwargs={"dtype": "float32"}, **options)
        torch.manual_seed(1)
        trainer = Recorder(model=str(start), ref_model=reference, args=config, processing_class=byte_tokenizer(folder),
                           train_dataset=Dataset.from_list(list(pairs())))
        trainer.train()
    return rows


def train_without_reference(folder, kind, options):
    """simpo: TRL's CPOTrainer without its term of cross-entropy. orpo: its ORPOTrainer, but with ltrain's cross-entropy, which
    leaves out the prompt's tokens."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    rows = []
    trainer_class, config_class = (CPOTrainer, CPOConfig) if kind == "simpo" else (ORPOTrainer, ORPOConfig)

    class Recorder(trainer_class):
        def concatenated_forward(self, model, batch):
            got = list(super().concatenated_forward(model, batch))
            counted = (batch["chosen_labels"][:, 1:] != -100).sum(-1)
            got[4] = -(got[0] * counted).sum() / counted.sum()
            return tuple(got)

        def get_batch_loss_metrics(self, *arguments, **more):
            loss, metrics = super().get_batch_loss_metrics(*arguments, **more)
            keys = ("rewards/chosen", "rewards/rejected", "rewards/accuracies")
            rows.append({"loss": float(loss.detach().double()), **{key: float(metrics[key]) for key in keys}})
            return loss, metrics

        def log(self, logs, *arguments, **more):
            if rows and "grad_norm" in logs:
                rows[-1]["grad_norm"] = float(logs["grad_norm"])
            return super().log(logs, *arguments, **more)

    if kind == "simpo":
        options = {"loss_type": "simpo", "cpo_alpha": 0.0, **options}
    with tempfile.TemporaryDirectory() as out:
        config = config_class(**common(out), max_length=256, **options)
        torch.manual_seed(1)
        trainer = Recorder(model=AutoModelForCausalLM.from_pretrained(str(FOLDER), dtype="float32"), args=config,
                           processing_class=byte_tokenizer(folder), train_dataset=Dataset.from_list(list(pairs())))
        trainer.train()
    return rows


def begin_adapter(model):
    """A of a LoRA model as the test sets it too: the sine of 1, 2, ... in the order of the names; B is zero."""
    import torch

    count = 0
    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            if "lora_A" in name:
                n = value.numel()
                value.copy_((torch.arange(count + 1, count + n + 1, dtype=torch.float64).sin() / 4).reshape(value.shape))
                count += n


def save_adapter(model, folder):
    """Without the page about the model, and without the folder of the base model on this machine."""
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "tests/golden/trl"
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def train_kto(folder, options):
    import torch
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    rows = []
    options = dict(options)
    lora, reference = options.pop("lora", None), reference_model(options)

    class Recorder(KTOTrainer):
        def compute_loss(self, *arguments, **more):
            got = super().compute_loss(*arguments, **more)
            loss = got[0] if isinstance(got, tuple) else got
            rows.append({"loss": float(loss.detach().double()), "kl": self._metrics["train"]["kl"][-1]})
            return got

        def log(self, logs, *arguments, **more):
            for key in ("rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected", "grad_norm"):
                if rows and self._metrics["train"].get(key):
                    rows[-1][key] = float(self._metrics["train"][key][-1])
                if rows and key in logs:
                    rows[-1][key] = float(logs[key])
            return super().log(logs, *arguments, **more)

    with tempfile.TemporaryDirectory() as out:
        config = KTOConfig(**common(out), max_length=None, model_init_kwargs={"dtype": "float32"}, **options)
        torch.manual_seed(1)
        peft = None
        if lora:
            from peft import LoraConfig

            peft = LoraConfig(task_type="CAUSAL_LM", **lora)
        trainer = Recorder(model=str(FOLDER), ref_model=reference, args=config, processing_class=byte_tokenizer(folder),
                           peft_config=peft,
                           train_dataset=Dataset.from_list(list(labelled())))
        if lora:
            begin_adapter(trainer.model)
            save_adapter(trainer.model, FOLDER / "adapter")
        trainer.train()
    return rows


def main():
    run_with(PACKAGES, __file__)
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    model = tiny_model()
    model.save_pretrained(FOLDER, safe_serialization=True)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    tiny_experts().save_pretrained(FOLDER / "experts", safe_serialization=True)
    (FOLDER / "experts" / "generation_config.json").unlink(missing_ok=True)
    with open(FOLDER / "pairs.jsonl", "w") as out:
        for row in pairs():
            out.write(json.dumps(row) + "\n")
    with open(FOLDER / "labelled.jsonl", "w") as out:
        for row in labelled():
            out.write(json.dumps(row) + "\n")
    result = {"versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
              "settings": SETTINGS, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
            result["runs"][name] = {"options": options, "steps": train(folder, options)}
        for name, options in WITHOUT_REFERENCE.items():
            result["runs"][name] = {"options": options, "steps": train_without_reference(folder, name, options)}
        result["experts"] = {"sigmoid": {"steps": train(folder, RUNS["sigmoid"], FOLDER / "experts")}}
        result["kto"] = {name: {"options": o, "steps": train_kto(folder, o)} for name, o in KTO_RUNS.items()}
    with open(FOLDER / "losses.json", "w") as out:
        out.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
