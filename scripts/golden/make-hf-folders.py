#!/usr/bin/env python3
"""Writes tests/golden/hf_folders.json: what transformers' save_pretrained makes of a tiny model of each family.

For each family and two versions of transformers: the config.json, and name, type and shape of each tensor of the
safetensors file. tests/runtime/weights/ puts random bytes into such folders, and imports and exports them.
Makes a virtual environment for each version and installs transformers and torch from PyPI there.
"""
import json
import os
import pathlib
import struct
import sys
import tempfile

from golden_tools import GOLDEN, described_by

VERSIONS = ["4.57.6", "5.23.0"]
LLAMA = dict(vocab_size=272, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=16)
LATENT = dict(LLAMA, num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
              n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1)
MODELS = {
    "gpt2": ("gpt2", dict(vocab_size=272, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "gpt2-gelu": ("gpt2", dict(vocab_size=272, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                               activation_function="gelu")),
    "llama": ("llama", LLAMA),
    "llama-bias": ("llama", dict(LLAMA, attention_bias=True, hidden_act="gelu")),
    "llama-3.2": ("llama", dict(LLAMA, tie_word_embeddings=True, rope_theta=500000.0, rope_scaling=LLAMA3, head_dim=16)),
    "llama-linear": ("llama", dict(LLAMA, rope_scaling=dict(rope_type="linear", factor=2.5))),
    "llama-yarn": ("llama", dict(LLAMA, rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=4.0,
                                                          original_max_position_embeddings=16))),
    "mistral": ("mistral", dict(LLAMA, sliding_window=20)),
    "qwen2": ("qwen2", dict(LLAMA, use_sliding_window=True, sliding_window=20, max_window_layers=1)),
    "qwen3": ("qwen3", dict(LLAMA, head_dim=16, tie_word_embeddings=True)),
    "qwen3-bias": ("qwen3", dict(LLAMA, head_dim=16, attention_bias=True)),
    "olmo2": ("olmo2", LLAMA),
    "smollm3": ("smollm3", dict(LLAMA, num_hidden_layers=4, pad_token_id=None)),
    "phi3": ("phi3", dict(LLAMA, sliding_window=20, pad_token_id=None)),
    "phi3-longrope": ("phi3", dict(LLAMA, hidden_size=64, partial_rotary_factor=0.75, pad_token_id=None,
                                   original_max_position_embeddings=16, tie_word_embeddings=True,
                                   rope_scaling=dict(type="longrope", short_factor=[1.0 + i / 8 for i in range(6)],
                                                     long_factor=[1.0 + i * 1.1 for i in range(6)]))),
    "gemma2": ("gemma2", dict(LLAMA, num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=24, sliding_window=20,
                              attn_logit_softcapping=20.0, pad_token_id=None)),
    "gemma2-plain": ("gemma2", dict(LLAMA, head_dim=16, query_pre_attn_scalar=16, attn_logit_softcapping=None,
                                    final_logit_softcapping=None, tie_word_embeddings=False, pad_token_id=None)),
    "gemma3": ("gemma3_text", dict(LLAMA, num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=24, sliding_window=20,
                                   sliding_window_pattern=2, rope_theta=5000.0, rope_local_base_freq=40.0,
                                   rope_scaling=dict(rope_type="linear", factor=2.5), pad_token_id=None)),
    "gemma3-plain": ("gemma3_text", dict(LLAMA, head_dim=16, query_pre_attn_scalar=16, sliding_window=512,
                                         tie_word_embeddings=False, pad_token_id=None)),
    "gpt_oss": ("gpt_oss", dict(LLAMA, num_hidden_layers=3, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
                                sliding_window=20)),
    "deepseek_v2": ("deepseek_v2", dict(LATENT, num_hidden_layers=3, first_k_dense_replace=1, q_lora_rank=None)),
    "deepseek_v2-groups": ("deepseek_v2", dict(LATENT, q_lora_rank=12, topk_method="group_limited_greedy", n_group=2,
                                               topk_group=1, routed_scaling_factor=16.0, rope_scaling=dict(
                                                   YARN, mscale=0.707, mscale_all_dim=0.707))),
    "deepseek_v3": ("deepseek_v3", dict(LATENT, num_hidden_layers=3, first_k_dense_replace=1, q_lora_rank=12, n_group=2,
                                        topk_group=1, num_nextn_predict_layers=0, rope_scaling=dict(
                                            YARN, mscale=1.0, mscale_all_dim=1.0))),
    "mixtral": ("mixtral", dict(LLAMA, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("qwen3_moe", dict(LLAMA, **EXPERTS, moe_intermediate_size=24, head_dim=16, decoder_sparse_step=2)),
    "olmoe": ("olmoe", dict(LLAMA, **EXPERTS)),
    "olmoe-bias": ("olmoe", dict(LLAMA, **EXPERTS, attention_bias=True, hidden_act="gelu_new", clip_qkv=8.0)),
}


def header_of(path):
    with open(path, "rb") as file:
        (n,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(n))


def describe():
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    out = {}
    for name, (model_type, settings) in MODELS.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
        model = model.to(torch.bfloat16)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            files = sorted(p.name for p in pathlib.Path(folder).glob("*.safetensors"))
            assert files == ["model.safetensors"], files
            header = header_of(os.path.join(folder, files[0]))
            header.pop("__metadata__", None)
            config = json.loads(pathlib.Path(folder, "config.json").read_text())
            out[name] = {"config": config, "tensors": {k: [v["dtype"], v["shape"]] for k, v in sorted(header.items())}}
    print(json.dumps(out))


def main():
    versions = {v: described_by([f"transformers=={v}", "torch"], __file__) for v in VERSIONS}
    path = GOLDEN / "hf_folders.json"
    path.write_text(json.dumps(versions, indent=None, sort_keys=True, separators=(",", ":")) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    describe() if sys.argv[1:] == ["--describe"] else main()
