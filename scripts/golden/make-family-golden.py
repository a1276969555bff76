#!/usr/bin/env python3
"""Writes tests/golden/family_*.safetensors: a tiny random model of each family, trained by transformers' code in fp64.

Each file holds weights (bf16, exact), tokens and targets of 20 steps, the logits of the first batch, the gradient of
every parameter of the first step (both rounded to fp32) and the loss of each step under PyTorch's AdamW; its config.json
and the optimizer's settings are in the metadata. tests/models/family_golden_test.cpp computes the same with ltrain.
Makes a virtual environment and installs PyPI's torch (CPU) and transformers there, some gigabytes; or, with --here,
takes those of the Python that runs it. Names of fixtures as arguments: only these.

transformers computes norms, rotations and softmax in fp32 whatever the model's type is. Here torch.float32 and
torch.float stand for fp64 inside its modules, so that a whole fp64 computation by its code is compared. Tables of
rotary embeddings are rounded to fp32, as ltrain's are in every precision.
"""
import json
import sys

from golden_tools import GOLDEN, exact_rotary, run_with, transformers_in_float64, write_safetensors

VERSIONS = ["torch==2.15.0", "transformers==5.23.0"]
BATCH, SEQ, STEPS = 2, 12, 20
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)

COMMON = dict(vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.02, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2,
              pad_token_id=None)  # else transformers leaves that token's embedding without a gradient
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
LATENT = dict(kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, n_routed_experts=6,
              num_experts_per_tok=2, moe_intermediate_size=10)
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.25, 1.5], long_factor=[1.0, 2.75, 6.5])


def rope(theta):
    return dict(rope_type="default", rope_theta=theta)


# Fixture, its model_type and its config.json. Layers and windows are chosen so that every branch of a family is taken.
CONFIGS = {
    "llama": ("llama", dict(COMMON, rope_parameters=LLAMA3, rms_norm_eps=1e-5)),
    # The longest sequences that rotate as without scaling: as many positions as a sequence has.
    "llama_dynamic": ("llama", dict(COMMON, max_position_embeddings=SEQ, rms_norm_eps=1e-5,
                                    rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=3.0))),
    "llama_linear": ("llama", dict(COMMON, rms_norm_eps=1e-5,
                                   rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0))),
    # Channels on each side of the ramp and on it: 12 of them, which turn 2.5 to 0.004 times in 16 tokens.
    "qwen3_yarn": ("qwen3", dict(COMMON, head_dim=12, rope_parameters=dict(
        rope_type="yarn", rope_theta=64.0, factor=4.0, original_max_position_embeddings=16, beta_fast=2.0,
        beta_slow=0.25))),
    "llama_yarn": ("llama", dict(COMMON, head_dim=12, rope_parameters=dict(
        rope_type="yarn", rope_theta=64.0, factor=4.0, original_max_position_embeddings=16, beta_fast=2.0,
        beta_slow=0.25, truncate=False, mscale=0.7, mscale_all_dim=1.5))),
    # The exact GELU, with and without a gate.
    "gpt2_gelu": ("gpt2", dict(vocab_size=37, n_embd=16, n_layer=3, n_head=4, n_positions=32, n_inner=24,
                               activation_function="gelu", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
                               tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)),
    # Biases of attention's projections: alone, beside norms of heads, beside norms of full projections.
    "llama_bias": ("llama", dict(COMMON, attention_bias=True, hidden_act="gelu", rope_parameters=rope(1e4))),
    "qwen3_bias": ("qwen3", dict(COMMON, attention_bias=True, head_dim=6, rope_parameters=rope(1e6))),
    "olmo2_bias": ("olmo2", dict(COMMON, attention_bias=True, num_hidden_layers=2, rope_parameters=rope(5e5))),
    "mistral": ("mistral", dict(COMMON, sliding_window=5, head_dim=6, rope_parameters=rope(1e4))),
    "mistral_full": ("mistral", dict(COMMON, sliding_window=None, head_dim=4, rope_parameters=rope(1e6))),
    "qwen2": ("qwen2", dict(COMMON, tie_word_embeddings=True, rope_parameters=rope(1e6))),
    "qwen2_window": ("qwen2", dict(COMMON, use_sliding_window=True, sliding_window=4, max_window_layers=1,
                                   rope_parameters=rope(1e6))),
    "qwen3": ("qwen3", dict(COMMON, head_dim=6, rope_parameters=rope(1e6))),
    "olmo2": ("olmo2", dict(COMMON, rms_norm_eps=1e-6, rope_parameters=rope(5e5))),
    "smollm3": ("smollm3", dict(COMMON, no_rope_layer_interval=2, tie_word_embeddings=True,
                                rope_parameters=rope(2e6))),
    "phi3": ("phi3", dict(COMMON, sliding_window=5, rope_parameters=rope(1e4))),
    # Three of four pairs of channels rotate. Sequences of 12 tokens are longer than 8: the long factors.
    "phi3_long": ("phi3", dict(COMMON, hidden_size=32, partial_rotary_factor=0.75, original_max_position_embeddings=8,
                               rope_scaling=dict(LONGROPE))),
    "phi3_short": ("phi3", dict(COMMON, hidden_size=32, partial_rotary_factor=0.75,
                                original_max_position_embeddings=12, rope_scaling=dict(LONGROPE))),
    # A query scale, scores and logits near their soft-caps, and a width with an irrational root.
    "gemma2": ("gemma2", dict(COMMON, hidden_size=20, head_dim=6, query_pre_attn_scalar=9, sliding_window=5,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0, tie_word_embeddings=True,
                              rope_parameters=rope(1e4))),
    # Without soft-caps, and all layers see all tokens.
    "gemma2_plain": ("gemma2", dict(COMMON, head_dim=4, query_pre_attn_scalar=4, sliding_window=64,
                                    attn_logit_softcapping=None, final_logit_softcapping=None,
                                    rope_parameters=rope(1e4))),
    # Norms of heads. The window hides nothing, and its layers rotate by a base of their own all the same.
    "gemma3_text": ("gemma3_text", dict(COMMON, head_dim=6, query_pre_attn_scalar=9, sliding_window=64,
                                        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                        tie_word_embeddings=True, rope_theta=500.0, rope_local_base_freq=40.0)),
    "gemma3_text_linear": ("gemma3_text", dict(
        COMMON, head_dim=4, query_pre_attn_scalar=4, sliding_window=5, sliding_window_pattern=2,
        final_logit_softcapping=3.0, rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=100.0, factor=3.0),
            sliding_attention=dict(rope_type="default", rope_theta=30.0)))),
    # With experts; transformers' loss for balance is part of what is trained.
    "mixtral": ("mixtral", dict(COMMON, sliding_window=5, num_local_experts=4, num_experts_per_tok=2,
                                output_router_logits=True, router_aux_loss_coef=0.02, rope_parameters=rope(1e6))),
    "qwen3_moe": ("qwen3_moe", dict(COMMON, head_dim=6, use_sliding_window=True, sliding_window=4, num_experts=5,
                                    num_experts_per_tok=2, moe_intermediate_size=10, mlp_only_layers=[1],
                                    norm_topk_prob=True, output_router_logits=True, router_aux_loss_coef=0.02,
                                    rope_parameters=rope(1e6))),
    "gpt_oss": ("gpt_oss", dict(COMMON, head_dim=6, intermediate_size=10, sliding_window=5, num_local_experts=5,
                                num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.02,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                rope_parameters=dict(
                                    rope_type="yarn", rope_theta=64.0, factor=4.0, beta_fast=2.0, beta_slow=0.25,
                                    truncate=False, original_max_position_embeddings=16))),
    # Queries without a latent, a dense first layer, and YaRN's scale of the scores.
    "deepseek_v2": ("deepseek_v2", dict(COMMON, **LATENT, q_lora_rank=None, first_k_dense_replace=1, n_shared_experts=2,
                                        rope_parameters=dict(
                                            rope_type="yarn", rope_theta=64.0, factor=4.0, beta_fast=2.0,
                                            beta_slow=0.25, mscale=0.7, mscale_all_dim=1.5,
                                            original_max_position_embeddings=16))),
    "deepseek_v2_groups": ("deepseek_v2", dict(COMMON, **LATENT, q_lora_rank=6, topk_method="group_limited_greedy",
                                               n_group=3, topk_group=1, routed_scaling_factor=1.5, n_shared_experts=1,
                                               rope_parameters=rope(1e4))),
    # Norms of latents have an epsilon of their own.
    "deepseek_v3": ("deepseek_v3", dict(COMMON, **LATENT, q_lora_rank=6, n_group=2, topk_group=1, rms_norm_eps=1e-2,
                                        first_k_dense_replace=1, n_shared_experts=1, routed_scaling_factor=2.5,
                                        num_nextn_predict_layers=0, rope_parameters=rope(1e4))),
    # Two modules behind the last layer: MODULES.
    "deepseek_v3_mtp": ("deepseek_v3", dict(COMMON, **LATENT, q_lora_rank=6, n_group=2, topk_group=1,
                                            first_k_dense_replace=1, n_shared_experts=1, routed_scaling_factor=2.5,
                                            num_nextn_predict_layers=2, rope_parameters=rope(1e4))),
    # About a third of queries, keys and values are clamped.
    "olmoe_clip": ("olmoe", dict(COMMON, num_key_value_heads=4, num_experts=6, num_experts_per_tok=3, clip_qkv=0.5,
                                 rope_parameters=rope(1e4))),
    "olmoe": ("olmoe", dict(COMMON, num_key_value_heads=4, num_experts=6, num_experts_per_tok=3,
                            output_router_logits=True, router_aux_loss_coef=0.02, rope_parameters=rope(1e4))),
}


MODULES = {"deepseek_v3_mtp": 0.7}  # fixtures with multi-token prediction, and the factor of its loss


def add_modules(model):
    """Multi-token prediction upon transformers' decoder layer, which has none: arXiv:2412.19437, section 2.2, equations
    21 to 25. The representation of the main model is the result of its last norm, as in Megatron-LM. Layers behind the
    last are no part of transformers' forward, and their parameters get the names of DeepSeek's files."""
    import torch

    layers, c = model.model.layers, model.config
    norm = type(model.model.norm)
    for k in range(c.num_nextn_predict_layers):
        module = type(layers[0])(c, c.num_hidden_layers + k)
        module.enorm, module.hnorm = (norm(c.hidden_size, c.rms_norm_eps) for _ in range(2))
        module.eh_proj = torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        module.shared_head = torch.nn.Module()
        module.shared_head.norm = norm(c.hidden_size, c.rms_norm_eps)
        layers.append(module)


def losses_of_modules(model, hidden, tokens, targets):
    """Of each module: the sum of the losses of its tokens over the number of the main model's, as the report has it."""
    import torch

    batch, length = tokens.shape
    positions = torch.arange(length)[None].expand(batch, -1)
    mask = torch.full((length, length), -1e30, dtype=hidden.dtype).triu(1)[None, None]
    losses = []
    for k, module in enumerate(model.model.layers[model.config.num_hidden_layers:], 1):
        shifted, later = torch.zeros_like(tokens), torch.full_like(targets, -1)
        shifted[:, :-k], later[:, :-k] = tokens[:, k:], targets[:, k:]
        both = torch.cat([module.enorm(model.model.embed_tokens(shifted)), module.hnorm(hidden)], dim=-1)
        out = module(module.eh_proj(both), attention_mask=mask, position_ids=positions,
                     position_embeddings=model.model.rotary_emb(hidden, positions))
        hidden = module.shared_head.norm(out[0] if isinstance(out, tuple) else out)
        logits = model.lm_head(hidden)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), later.flatten(), ignore_index=-1,
                                                 reduction="sum")
        losses.append(loss / (targets >= 0).sum())
    return losses


def in_our_order(kind, name, t):
    """gpt_oss's experts have (in, out), gate and up of a hidden unit beside each other; ltrain's (2, out, in). gpt2's
    linear layers have (in, out)."""
    if kind == "gpt2" and name.startswith("transformer.h.") and t.dim() == 2:
        return t.transpose(0, 1).contiguous()
    if kind != "gpt_oss" or ".experts." not in name or name.endswith("down_proj_bias"):
        return t
    if not name.endswith("_bias"):
        t = t.transpose(1, 2)
    return t.unflatten(1, (-1, 2)).transpose(1, 2).contiguous() if "gate_up" in name else t.contiguous()


def make(fixture):
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, settings = CONFIGS[fixture]
    if kind.startswith("deepseek"):
        settings = dict(settings, num_key_value_heads=settings["num_attention_heads"])
    config = CONFIG_MAPPING[kind](**settings)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    factor = MODULES.get(fixture, 0)
    if factor:
        add_modules(model)
    model = model.double().train()
    with transformers_in_float64() as real_float:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for n, p in sorted(model.named_parameters()):
                value = 0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
                if n.endswith(".sinks"):
                    value *= 5  # about as large as scores
                if "gate_up_proj_bias" in n:
                    value += 6.5 * torch.sign(value)  # some beyond the limits of the clamped SwiGLU, some within
                if ("norm" in n and not kind.startswith("gemma")  # whose norms scale by 1 + weight
                        or ".ln_" in n and n.endswith(".weight")):
                    value += 1
                if n.endswith("mlp.gate.weight"):
                    value *= 4  # a router that has made up its mind
                p.copy_(value.bfloat16().double())
            biases = {n: b for n, b in model.named_buffers() if n.endswith(".e_score_correction_bias")}
            for n, b in sorted(biases.items()):  # about as large as scores differ
                b.copy_(0.3 * torch.randn(b.shape, generator=generator, dtype=torch.float64).to(torch.float32))
        if kind != "gpt2":  # whose positions are learned
            exact_rotary(model.model.rotary_emb, real_float)

        def ours(n):
            return n.replace(".mlp.", ".block_sparse_moe.") if kind == "mixtral" else n

        record = {"weight." + ours(n): in_our_order(kind, n, p.detach()).bfloat16()
                  for n, p in model.named_parameters()}
        record.update({"buffer." + n: b.to(torch.float32) for n, b in biases.items()})
        tokens = torch.randint(0, config.vocab_size, (STEPS, BATCH, SEQ), generator=generator)
        # Learnable: every token is a function of the one before it.
        for i in range(1, SEQ):
            tokens[:, :, i] = (3 * tokens[:, :, i - 1] + 5) % config.vocab_size
        labels = tokens.clone()
        labels[:, 1, SEQ - 4:] = -100
        decays = {p: p.dim() > 1 and not n.endswith("_bias") for n, p in model.named_parameters()}
        decayed, rest = [p for p in decays if decays[p]], [p for p in decays if not decays[p]]
        optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=ADAMW["weight_decay"]),
                                       dict(params=rest, weight_decay=0.0)], lr=ADAMW["lr"],
                                      betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
        losses, mtp_losses = [], []
        for step in range(STEPS):
            optimizer.zero_grad()
            out = model(input_ids=tokens[step], labels=labels[step])
            assert out.loss.dtype == torch.float64 and out.logits.dtype == torch.float64
            objective = out.loss
            if factor:
                targets = torch.full((BATCH, SEQ), -1)
                targets[:, :-1] = labels[step][:, 1:]
                targets[targets == -100] = -1
                hidden = model.model(input_ids=tokens[step]).last_hidden_state  # once more, behind the last norm
                assert torch.equal(model.lm_head(hidden), out.logits)
                later = losses_of_modules(model, hidden, tokens[step], targets)
                mtp_losses.append(torch.stack(later).mean().detach())
                objective = objective + factor * torch.stack(later).mean()
            objective.backward()
            aux = getattr(out, "aux_loss", None)  # in the loss; what is recorded is that of the tokens
            losses.append((out.loss if aux is None else out.loss - config.router_aux_loss_coef * aux).detach())
            if step == 0:
                record["logits"] = out.logits.detach().to(torch.float32)
                for n, p in model.named_parameters():
                    assert p.grad is not None, n
                    record["grad." + ours(n)] = in_our_order(kind, n, p.grad).to(torch.float32)
            optimizer.step()
    targets = torch.full((STEPS, BATCH, SEQ), -1)
    targets[:, :, :-1] = labels[:, :, 1:]
    targets[targets == -100] = -1
    record["tokens"], record["targets"] = tokens.int(), targets.int()
    record["loss"] = torch.stack(losses)
    if factor:
        record["mtp_loss"] = torch.stack(mtp_losses)
    path = GOLDEN / f"family_{fixture}.safetensors"
    metadata = {k: repr(v) for k, v in ADAMW.items()}
    if factor:
        metadata.update(modules=repr(settings["num_nextn_predict_layers"]), modules_scale=repr(factor))
    metadata.update(config=json.dumps(dict(settings, model_type=kind)), transformers=transformers.__version__)
    write_safetensors(path, record, metadata)
    print(f"{path}: {path.stat().st_size} bytes, loss {losses[0].item():.4f} to {losses[-1].item():.4f}")


def main():
    run_with(VERSIONS, __file__)
    import torch

    torch.set_num_threads(1)
    for name in [a for a in sys.argv[1:] if a != "--here"] or CONFIGS:
        make(name)


main()
