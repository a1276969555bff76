#!/usr/bin/env python3
"""A few steps of TRL's SFTTrainer on the CPU, with or without PEFT's LoRA, on one batch of token ids. Prints JSON: the
loss and the milliseconds of each step, and the peak memory of the process. compare_fine_tuning.py runs it."""
import argparse
import json
import resource
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from tokenizers import Tokenizer, models
from trl import SFTConfig, SFTTrainer


class InOrder(SFTTrainer):
    """Each batch has all rows, as each step of ltrain."""

    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(dataset if dataset is not None else self.train_dataset)


class Times(TrainerCallback):
    def __init__(self):
        self.begin, self.ms, self.losses = 0.0, [], []

    def on_step_begin(self, *_, **__):
        self.begin = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.ms.append(1e3 * (time.perf_counter() - self.begin))

    def on_log(self, _, __, ___, logs=None, **____):
        if "loss" in logs:
            self.losses.append(logs["loss"])


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--model", required=True)
    a.add_argument("--tokens", required=True, help="JSON: rows of token ids")
    a.add_argument("--dtype", default="fp32")
    a.add_argument("--rank", type=int, default=0)
    a.add_argument("--steps", type=int, default=5)
    a.add_argument("--threads", type=int, default=2)
    o = a.parse_args()
    torch.set_num_threads(o.threads)
    with open(o.tokens) as f:
        rows = json.load(f)
    data = Dataset.from_list([{"input_ids": row} for row in rows * o.steps])
    # Without a text to tokenise it only pads, and no row is short.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>")),
                                        pad_token="<pad>", eos_token="<pad>")
    model = AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.bfloat16 if o.dtype == "bf16" else torch.float32)
    lora = LoraConfig(r=o.rank, lora_alpha=2 * o.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    times = Times()
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(output_dir=folder, use_cpu=True, per_device_train_batch_size=len(rows), max_steps=o.steps,
                           max_length=len(rows[0]), learning_rate=3e-4, lr_scheduler_type="constant", logging_steps=1,
                           save_strategy="no", report_to=[], gradient_checkpointing=False, bf16=o.dtype == "bf16",
                           optim="adamw_torch_fused", dataset_kwargs={"skip_prepare_dataset": True},
                           dataloader_pin_memory=False, disable_tqdm=True)
        InOrder(model=model, args=config, train_dataset=data, processing_class=tokenizer,
                peft_config=lora if o.rank else None, callbacks=[times]).train()
    print(json.dumps({"loss": times.losses, "step_ms": times.ms,
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


main()
