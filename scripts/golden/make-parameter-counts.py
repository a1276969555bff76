#!/usr/bin/env python3
"""Writes tests/golden/published_configs.json: config.json texts with published values, and how many parameters
transformers' models of them have, counted on its meta device.

The values are those that the models' authors published; what a text leaves out has transformers' default. Weights that
are tied are counted once. tests/runtime/plan/published_configs_test.cpp plans each with ltrain. Makes a virtual
environment and installs PyPI's torch (CPU) and transformers there, some gigabytes; or, with --here, takes those of the
Python that runs it.
"""
import json

from golden_tools import GOLDEN, run_with

VERSIONS = ["torch==2.15.0", "transformers==5.23.0"]


def llama_like(kind, vocab, hidden, ffn, layers, heads, kv_heads, positions, theta, eps, tied=False, **more):
    return dict(model_type=kind, vocab_size=vocab, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=positions,
                rope_theta=theta, rms_norm_eps=eps, hidden_act="silu", tie_word_embeddings=tied, **more)


def gpt2(hidden, layers, heads):
    return dict(model_type="gpt2", vocab_size=50257, n_positions=1024, n_ctx=1024, n_embd=hidden, n_layer=layers,
                n_head=heads, activation_function="gelu_new", layer_norm_epsilon=1e-5)


def gemma2(hidden, ffn, layers, heads, kv_heads, head_dim, scalar):
    return dict(llama_like("gemma2", 256000, hidden, ffn, layers, heads, kv_heads, 8192, 1e4, 1e-6, True),
                hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", attention_bias=False,
                attention_dropout=0.0, cache_implementation="hybrid", head_dim=head_dim, query_pre_attn_scalar=scalar,
                sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)


def gemma3(hidden, ffn, layers, heads, kv_heads, scalar, positions, window, vocab=262144, head_dim=256, scaling=None):
    return dict(llama_like("gemma3_text", vocab, hidden, ffn, layers, heads, kv_heads, positions, 1e6, 1e-6, True),
                hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", attention_bias=False,
                attention_dropout=0.0, attn_logit_softcapping=None, final_logit_softcapping=None,
                cache_implementation="hybrid", head_dim=head_dim, query_pre_attn_scalar=scalar,
                rope_local_base_freq=10000, rope_scaling=scaling, sliding_window=window, sliding_window_pattern=6)


def deepseek(kind, vocab, hidden, ffn, layers, heads, positions, experts, moe_ffn, shared, q_lora, mscale, **more):
    common = dict(attention_bias=False, attention_dropout=0.0, aux_loss_alpha=0.001, ep_size=1, first_k_dense_replace=1,
                  kv_lora_rank=512, moe_intermediate_size=moe_ffn, moe_layer_freq=1, n_group=1, n_routed_experts=experts,
                  n_shared_experts=shared, norm_topk_prob=False, num_experts_per_tok=6, pretraining_tp=1,
                  q_lora_rank=q_lora, qk_nope_head_dim=128, qk_rope_head_dim=64, routed_scaling_factor=1.0,
                  scoring_func="softmax", seq_aux=True, topk_group=1, topk_method="greedy", v_head_dim=128,
                  rope_scaling=dict(beta_fast=32, beta_slow=1, factor=40, mscale=mscale, mscale_all_dim=mscale,
                                    original_max_position_embeddings=4096, type="yarn"))
    return llama_like(kind, vocab, hidden, ffn, layers, heads, heads, positions, 10000, 1e-6, **(common | more))


def gpt_oss(layers, experts):
    return dict(llama_like("gpt_oss", 201088, 2880, 2880, layers, 64, 8, 131072, 150000, 1e-5), head_dim=64,
                attention_bias=True, attention_dropout=0.0, num_local_experts=experts, num_experts_per_tok=4,
                experts_per_token=4, sliding_window=128, swiglu_limit=7.0, initial_context_length=4096,
                layer_types=["full_attention" if i % 2 else "sliding_attention" for i in range(layers)],
                router_aux_loss_coef=0.9, output_router_logits=False,
                rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096,
                                  rope_type="yarn", truncate=False))


def llama3(factor):
    return dict(attention_bias=False, mlp_bias=False, pretraining_tp=1,
                rope_scaling=dict(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=8192, rope_type="llama3"))


def qwen(first, window=32768, **more):
    return dict(use_sliding_window=False, sliding_window=window, max_window_layers=first, attention_dropout=0.0, **more)


def longrope(pairs):
    """Of the authors' shape; their factors are not what parameters are counted by."""
    return dict(type="longrope", short_factor=[1.0] * pairs, long_factor=[1.0 + i for i in range(pairs)])


def phi(vocab, hidden, ffn, layers, heads, kv_heads, positions, window, scaling=None, tied=False, theta=10000.0, **more):
    common = dict(attention_bias=False, attention_dropout=0.0, embd_pdrop=0.0, resid_pdrop=0.0, sliding_window=window,
                  rope_scaling=scaling, original_max_position_embeddings=4096)
    return llama_like("phi3", vocab, hidden, ffn, layers, heads, kv_heads, positions, theta, 1e-5, tied,
                      **(common | more))


LINEAR8 = dict(factor=8.0, rope_type="linear")
CONFIGS = {
    "gpt2": gpt2(768, 12, 12),
    "gpt2-medium": gpt2(1024, 24, 16),
    "gpt2-large": gpt2(1280, 36, 20),
    "gpt2-xl": gpt2(1600, 48, 25),
    "llama-7b": llama_like("llama", 32000, 4096, 11008, 32, 32, 32, 2048, 1e4, 1e-6),
    "llama-13b": llama_like("llama", 32000, 5120, 13824, 40, 40, 40, 2048, 1e4, 1e-6),
    "llama-30b": llama_like("llama", 32000, 6656, 17920, 60, 52, 52, 2048, 1e4, 1e-6),
    "llama-65b": llama_like("llama", 32000, 8192, 22016, 80, 64, 64, 2048, 1e4, 1e-5),
    "Llama-2-7b": llama_like("llama", 32000, 4096, 11008, 32, 32, 32, 4096, 1e4, 1e-5),
    "Llama-2-13b": llama_like("llama", 32000, 5120, 13824, 40, 40, 40, 4096, 1e4, 1e-5),
    "Llama-2-70b": llama_like("llama", 32000, 8192, 28672, 80, 64, 8, 4096, 1e4, 1e-5),
    "Meta-Llama-3-8B": llama_like("llama", 128256, 4096, 14336, 32, 32, 8, 8192, 5e5, 1e-5),
    "Meta-Llama-3-70B": llama_like("llama", 128256, 8192, 28672, 80, 64, 8, 8192, 5e5, 1e-5),
    "Llama-3.1-8B": llama_like("llama", 128256, 4096, 14336, 32, 32, 8, 131072, 5e5, 1e-5, **llama3(8.0)),
    "Llama-3.1-405B": llama_like("llama", 128256, 16384, 53248, 126, 128, 8, 131072, 5e5, 1e-5, **llama3(8.0)),
    "Llama-3.2-1B": llama_like("llama", 128256, 2048, 8192, 16, 32, 8, 131072, 5e5, 1e-5, True, head_dim=64,
                               **llama3(32.0)),
    "Llama-3.2-3B": llama_like("llama", 128256, 3072, 8192, 28, 24, 8, 131072, 5e5, 1e-5, True, head_dim=128,
                               **llama3(32.0)),
    "Llama-3.3-70B": llama_like("llama", 128256, 8192, 28672, 80, 64, 8, 131072, 5e5, 1e-5, **llama3(8.0)),
    "Mistral-7B-v0.1": llama_like("mistral", 32000, 4096, 14336, 32, 32, 8, 32768, 1e4, 1e-5, sliding_window=4096),
    "Mistral-7B-v0.3": llama_like("mistral", 32768, 4096, 14336, 32, 32, 8, 32768, 1e6, 1e-5, sliding_window=None),
    "Mistral-Nemo-2407": llama_like("mistral", 131072, 5120, 14336, 40, 32, 8, 128000, 1e6, 1e-5, head_dim=128,
                                    sliding_window=None),
    "Mixtral-8x7B-v0.1": llama_like("mixtral", 32000, 4096, 14336, 32, 32, 8, 32768, 1e6, 1e-5, num_local_experts=8,
                                    num_experts_per_tok=2, sliding_window=None),
    "Mixtral-8x22B-v0.1": llama_like("mixtral", 32000, 6144, 16384, 56, 48, 8, 65536, 1e6, 1e-5, num_local_experts=8,
                                     num_experts_per_tok=2, sliding_window=None),
    "Qwen2-0.5B": llama_like("qwen2", 151936, 896, 4864, 24, 14, 2, 131072, 1e6, 1e-6, True, **qwen(24, 131072)),
    "Qwen2-7B": llama_like("qwen2", 152064, 3584, 18944, 28, 28, 4, 131072, 1e6, 1e-6, **qwen(28, 131072)),
    "Qwen2-72B": llama_like("qwen2", 152064, 8192, 29568, 80, 64, 8, 131072, 1e6, 1e-5, **qwen(80, 131072)),
    "Qwen2.5-0.5B": llama_like("qwen2", 151936, 896, 4864, 24, 14, 2, 32768, 1e6, 1e-6, True, **qwen(24)),
    "Qwen2.5-1.5B": llama_like("qwen2", 151936, 1536, 8960, 28, 12, 2, 131072, 1e6, 1e-6, True, **qwen(28, 131072)),
    "Qwen2.5-3B": llama_like("qwen2", 151936, 2048, 11008, 36, 16, 2, 32768, 1e6, 1e-6, True, **qwen(36)),
    "Qwen2.5-14B": llama_like("qwen2", 152064, 5120, 13824, 48, 40, 8, 131072, 1e6, 1e-5, **qwen(48, 131072)),
    "Qwen2.5-32B": llama_like("qwen2", 152064, 5120, 27648, 64, 40, 8, 131072, 1e6, 1e-5, **qwen(64, 131072)),
    "Qwen3-0.6B": llama_like("qwen3", 151936, 1024, 3072, 28, 16, 8, 40960, 1e6, 1e-6, True, head_dim=128,
                             **qwen(28, None)),
    "Qwen3-1.7B": llama_like("qwen3", 151936, 2048, 6144, 28, 16, 8, 40960, 1e6, 1e-6, True, head_dim=128,
                             **qwen(28, None)),
    "Qwen3-4B": llama_like("qwen3", 151936, 2560, 9728, 36, 32, 8, 40960, 1e6, 1e-6, True, head_dim=128,
                           **qwen(36, None)),
    "Qwen3-8B": llama_like("qwen3", 151936, 4096, 12288, 36, 32, 8, 40960, 1e6, 1e-6, head_dim=128, **qwen(36, None)),
    "Qwen3-14B": llama_like("qwen3", 151936, 5120, 17408, 40, 40, 8, 40960, 1e6, 1e-6, head_dim=128,
                            **qwen(40, None)),
    "Qwen3-32B": llama_like("qwen3", 151936, 5120, 25600, 64, 64, 8, 40960, 1e6, 1e-6, head_dim=128,
                            **qwen(64, None)),
    "Qwen3-30B-A3B": llama_like("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 40960, 1e6, 1e-6, head_dim=128,
                                num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
                                decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True, **qwen(48, None)),
    "Qwen3-235B-A22B": llama_like("qwen3_moe", 151936, 4096, 12288, 94, 64, 4, 40960, 1e6, 1e-6, head_dim=128,
                                  num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536,
                                  decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True, **qwen(94, None)),
    "Phi-3-mini-4k-instruct": phi(32064, 3072, 8192, 32, 32, 32, 4096, 2047),
    "Phi-3-mini-128k-instruct": phi(32064, 3072, 8192, 32, 32, 32, 131072, 262144, longrope(48)),
    "Phi-3-medium-4k-instruct": phi(32064, 5120, 17920, 40, 40, 10, 4096, 2047),
    "phi-4": phi(100352, 5120, 17920, 40, 40, 10, 16384, None, theta=250000, original_max_position_embeddings=16384),
    "Phi-4-mini-instruct": phi(200064, 3072, 8192, 32, 24, 8, 131072, 262144, longrope(48), True,
                               partial_rotary_factor=0.75),
    "DeepSeek-V2-Lite": deepseek("deepseek_v2", 102400, 2048, 10944, 27, 16, 163840, 64, 1408, 2, None, 0.707),
    "DeepSeek-V2": deepseek("deepseek_v2", 102400, 5120, 12288, 60, 128, 163840, 160, 1536, 2, 1536, 0.707, n_group=8,
                            topk_group=3, topk_method="group_limited_greedy", routed_scaling_factor=16.0),
    "DeepSeek-V3": deepseek("deepseek_v3", 129280, 7168, 18432, 61, 128, 163840, 256, 2048, 1, 1536, 1.0, n_group=8,
                            topk_group=4, topk_method="noaux_tc", routed_scaling_factor=2.5, num_experts_per_tok=8,
                            first_k_dense_replace=3, norm_topk_prob=True, scoring_func="sigmoid",
                            num_nextn_predict_layers=1),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "OLMo-2-0425-1B": llama_like("olmo2", 100352, 2048, 8192, 16, 16, 16, 4096, 5e5, 1e-6),
    "OLMo-2-1124-7B": llama_like("olmo2", 100352, 4096, 11008, 32, 32, 32, 4096, 5e5, 1e-6),
    "OLMo-2-1124-13B": llama_like("olmo2", 100352, 5120, 13824, 40, 40, 40, 4096, 5e5, 1e-6),
    "OLMo-2-0325-32B": llama_like("olmo2", 100352, 5120, 27648, 64, 40, 8, 4096, 5e5, 1e-6),
    "OLMoE-1B-7B-0924": llama_like("olmoe", 50304, 2048, 1024, 16, 16, 16, 4096, 1e4, 1e-5, num_experts=64,
                                   num_experts_per_tok=8, norm_topk_prob=False, clip_qkv=None),
    "SmolLM3-3B": llama_like("smollm3", 128256, 2048, 11008, 36, 16, 4, 65536, 5e6, 1e-6, True,
                             no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9, use_sliding_window=False,
                             sliding_window=None, attention_bias=False, mlp_bias=False),
    "gemma-2-2b": gemma2(2304, 9216, 26, 8, 4, 256, 256),
    "gemma-2-9b": gemma2(3584, 14336, 42, 16, 8, 256, 256),
    "gemma-2-27b": gemma2(4608, 36864, 46, 32, 16, 128, 144),
    "gemma-3-270m": gemma3(640, 2048, 18, 4, 1, 256, 32768, 512),
    "gemma-3-1b": gemma3(1152, 6912, 26, 4, 1, 256, 32768, 512),
    "gemma-3-4b-text": gemma3(2560, 10240, 34, 8, 4, 256, 131072, 1024, 262208, scaling=LINEAR8),
    "gemma-3-12b-text": gemma3(3840, 15360, 48, 16, 8, 256, 131072, 1024, 262208, scaling=LINEAR8),
    "gemma-3-27b-text": gemma3(5376, 21504, 62, 32, 16, 168, 131072, 1024, 262208, 128, LINEAR8),
}


def count(config):
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = {k: v for k, v in config.items() if k != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**settings))
    model.tie_weights()
    return sum(p.numel() for p in model.parameters())  # each tied one once


def main():
    run_with(VERSIONS, __file__)
    out = {}
    for name, config in CONFIGS.items():
        out[name] = dict(config=config, parameters=count(config))
        print(f"{name}: {out[name]['parameters']}", flush=True)
    path = GOLDEN / "published_configs.json"
    with open(path, "w") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(c)}" for n, c in out.items()) + "\n}\n")
    print(f"{path}: {path.stat().st_size} bytes")


main()
