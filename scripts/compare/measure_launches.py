#!/usr/bin/env python3
"""Ops of a micro-batch in eager PyTorch, beside the launches of ltrain on a GPU: what fusion saves. One minute.
PyTorch's ops of transformers' Llama with 16 layers are counted on the CPU, without views; ltrain's calls are those of a traced
step on an H200 (scripts/compare/results/h200_2026-11-26_steps.jsonl: 1B, without CUDA graphs, two micro-batches)."""
# packages: torch==2.15.0 transformers==5.24.0
import collections
import json
import os

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import measure

# Ops that move nothing.
VIEWS = {"view", "_unsafe_view", "t", "transpose", "expand", "slice", "select", "detach", "unsqueeze", "squeeze", "permute",
         "alias", "split", "as_strided", "reshape", "lift_fresh", "empty", "new_empty_strided", "empty_like", "unbind",
         "split_with_sizes", "chunk"}
OF_A_STEP = {"fill_zero", "sum_squares", "adamw"}


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op._schema.name.split("::")[1]
        if name not in VIEWS:
            self.calls[name] += 1
        return op(*args, **(kwargs or {}))


def eager():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=16,
                                         num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=128,
                                         tie_word_embeddings=True, use_cache=False)).to(torch.bfloat16)
    ids = torch.randint(0, 1000, (4, 64))
    model(input_ids=ids, labels=ids).loss.backward()  # the second micro-batch finds gradients
    forward, backward = Count(), Count()
    with forward:
        loss = model(input_ids=ids, labels=ids).loss
    with backward:
        loss.backward()
    return sum(forward.calls.values()), sum(backward.calls.values())


def ours():
    with open(os.path.join(measure.RESULTS, "h200_2026-11-26_steps.jsonl")) as f:
        for step in map(json.loads, f):
            if step["name"] == "1B, without CUDA graphs" and step["run"] == "B":
                return sum(op["calls"] for name, op in step["ops"].items() if name not in OF_A_STEP) // 2


forward, backward = eager()
print(f"PyTorch, eager: {forward} ops forward, {backward} backward; ltrain: {ours()} launches of both, "
      f"{100 * (1 - ours() / (forward + backward)):.0f} % fewer")
