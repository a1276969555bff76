#!/usr/bin/env python3
"""Writes tests/golden/lora_*.safetensors: tiny random models with adapters, trained by transformers and PEFT in fp64.

Each file holds the frozen weights (bf16, exact), PEFT's adapters before and after 20 steps of AdamW by their names in
PEFT's files, tokens and targets, the logits of the first batch and the loss of each step; config.json and PEFT's
adapter_config.json are in the metadata. B is not zero at first, so that every gradient matters. Dropout has ltrain's
masks, made here from its definition. Magnitudes of DoRA have no weight decay. With nf4 the matrices of linear layers are
quantised by bitsandbytes, whose codes and magnitudes the file has, too, and the model computes with what it dequantises.
Experts are linear modules of their own, as PEFT's files name them; transformers 5 has stacks instead, of which PEFT makes
one adapter for gate and up, and it must load the same file with equal logits, given the entries that ltrain's exports
add to its patterns.
tests/models/lora_test.cpp computes the same with ltrain. Makes a virtual environment with PyPI's torch (CPU),
transformers, PEFT and bitsandbytes; or, with --here, takes those of the Python that runs it.
"""
import copy
import json
import math
import pathlib
import sys
import tempfile

from golden_tools import GOLDEN, Float64Torch, exact_rotary, hash_name, philox, run_with, transformers_in_float64, write_safetensors

VERSIONS = ["torch==2.15.0", "transformers==5.24.0", "peft==0.21.2", "bitsandbytes==0.50.2"]
BATCH, SEQ, STEPS = 2, 12, 20
ADAMW = dict(lr=2e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)

LLAMA = dict(vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, bos_token_id=1,
             eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=1e4), rms_norm_eps=1e-5)
LLAMA_NF4 = dict(LLAMA, hidden_size=64, intermediate_size=128)
GPT2 = dict(vocab_size=37, n_embd=16, n_layer=2, n_head=4, n_positions=32, n_inner=24, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
QWEN3_MOE = dict(vocab_size=37, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=4, num_experts=4, num_experts_per_tok=2,
                 norm_topk_prob=True, router_aux_loss_coef=0.0, max_position_embeddings=32, tie_word_embeddings=False,
                 bos_token_id=1, eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=1e4),
                 rms_norm_eps=1e-5)
FIXTURES = {
    "llama": ("llama", LLAMA, dict(r=4, lora_alpha=8, target_modules="all-linear")),
    # Parts of fused matrices, rsLoRA, and modules that train whole.
    "llama_qv": ("llama", LLAMA, dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "up_proj"],
                                      modules_to_save=["lm_head"])),
    # Ranks and alphas of single modules, of which some are parts of one fused matrix.
    "llama_pattern": ("llama", LLAMA, dict(r=4, lora_alpha=8, target_modules="all-linear",
                                           rank_pattern={"q_proj": 2, "model.layers.1.mlp.down_proj": 6},
                                           alpha_pattern={"q_proj": 3, "up_proj": 20})),
    "llama_dropout": ("llama", LLAMA, dict(r=4, lora_alpha=8, lora_dropout=0.3, target_modules="all-linear")),
    # Magnitudes of rows, of all parts of fused matrices, and of some; with other ranks beside them, and with biases.
    "llama_dora": ("llama", LLAMA, dict(r=4, lora_alpha=8, use_dora=True, target_modules="all-linear",
                                        rank_pattern={"q_proj": 2})),
    "gpt2_dora": ("gpt2", GPT2, dict(r=3, lora_alpha=6, use_dora=True, fan_in_fan_out=True,
                                     target_modules=["c_attn", "c_fc", "mlp.c_proj"])),
    "llama_dora_qv": ("llama", LLAMA, dict(r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "v_proj", "up_proj"])),
    "llama_nf4": ("llama", LLAMA_NF4, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
                                           nf4=True)),
    "llama_pissa": ("llama", LLAMA, dict(r=4, lora_alpha=6, init_lora_weights="pissa", target_modules="all-linear",
                                         rank_pattern={"q_proj": 2})),
    "gpt2_pissa": ("gpt2", GPT2, dict(r=4, lora_alpha=12, init_lora_weights="pissa", fan_in_fan_out=True,
                                      target_modules=["c_attn", "c_fc", "mlp.c_proj"])),
    "qwen3_moe": ("qwen3_moe", QWEN3_MOE, dict(r=3, lora_alpha=5, target_modules=["q_proj", "gate_proj", "up_proj",
                                                                                "down_proj"])),
    # rsLoRA, and ranks and alphas of their own, of one layer's experts and of all.
    "qwen3_moe_pattern": ("qwen3_moe", QWEN3_MOE, dict(
        r=4, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"down_proj": 2, **{f"model.layers.1.mlp.experts.{e}.{m}_proj": 3 for e in range(4) for m in ("gate", "up")}},
        alpha_pattern={"gate_proj": 7, "up_proj": 7})),
    "qwen3_moe_pissa": ("qwen3_moe", QWEN3_MOE, dict(
        r=4, lora_alpha=6, init_lora_weights="pissa", target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"down_proj": 2})),
    "qwen3_moe_dropout": ("qwen3_moe", QWEN3_MOE, dict(
        r=4, lora_alpha=8, lora_dropout=0.3, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])),
    "qwen3_moe_dora": ("qwen3_moe", QWEN3_MOE, dict(
        r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"down_proj": 2})),
    "gpt2": ("gpt2", GPT2, dict(r=4, lora_alpha=12, fan_in_fan_out=True, target_modules=["c_attn", "attn.c_proj"])),
}

SEED = 1234  # ProgramOptions::seed


def row_key(row):
    """Name of a row for experts' dropout: limbs of 13 bits in 16, each with bit 13."""
    return sum((0x2000 | row >> 13 * i & 0x1FFF) << 16 * i for i in range(4))


def keep_mask(name, p, samples, columns):
    """Elements that ltrain's dropout keeps: a function of seed, name, sample, position and channel."""
    import torch

    stream = hash_name(name)
    calls = math.ceil(columns / 4)
    key = row_key if ".experts." in name else int
    rows = [[v for i in range(calls)
             for v in philox(SEED, stream, (key(sample * SEQ + position) * calls + i) % 2**64)][:columns]
            for sample in samples for position in range(SEQ)]
    return torch.tensor(rows) >= int(p * 2**32)


def counted_dropout(model, p, now):
    """Replaces the masks of PEFT's dropout by ltrain's; `now`: holds the step."""
    import torch

    class Dropout(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def forward(self, x):
            if not self.training:
                return x
            samples = [now["step"] * BATCH + k for k in range(BATCH)]
            scale = torch.tensor(1 / (1 - p), dtype=torch.float32).double()
            return x * keep_mask(self.name, p, samples, x.shape[-1]).reshape(x.shape) * scale

    found = 0
    for name, module in model.named_modules():
        if hasattr(module, "lora_dropout"):
            module.lora_dropout["default"] = Dropout(name.removeprefix("base_model.model.") + ".lora_A.weight")
            found += 1
    assert found


def experts_apart(model):
    """Gives each expert linear modules of its own, with the weights of transformers' stacks."""
    import torch

    class Expert(torch.nn.Module):
        def __init__(self, gate_up, down):
            super().__init__()
            for name, weight in zip(("gate_proj", "up_proj", "down_proj"), (*gate_up.chunk(2), down)):
                linear = torch.nn.Linear(*reversed(weight.shape), bias=False, dtype=weight.dtype)
                linear.weight.data.copy_(weight)
                self.add_module(name, linear)

        def forward(self, x):
            return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Experts(torch.nn.ModuleList):
        def forward(self, x, chosen, weights):
            return sum(expert(x) * (weights * (chosen == i)).sum(-1, keepdim=True) for i, expert in enumerate(self))

    for layer in model.model.layers:
        stacks = layer.mlp.experts
        layer.mlp.experts = Experts(Expert(*weights) for weights in zip(stacks.gate_up_proj, stacks.down_proj))


def add_stacks(path, layers):
    """Adds the entries that ltrain's exports have for transformers' stacks, where PEFT would take other scales.

    PEFT refuses dropout of stacks; exports have none.
    """
    from peft.utils.other import get_pattern_key

    config = json.loads(path.read_text())
    config["lora_dropout"] = 0.0
    for layer in range(layers):
        for matrix, stack, matrices in (("gate_proj", "gate_up_proj", 2), ("down_proj", "down_proj", 1)):
            own, default = {}, {"rank": config["r"], "alpha": config["lora_alpha"]}
            for key, value in default.items():
                pattern = config[key + "_pattern"]
                own[key] = pattern.get(get_pattern_key(pattern, f"model.layers.{layer}.mlp.experts.0.{matrix}"), value)
            times = math.sqrt(matrices) if config["use_rslora"] else matrices
            if own != default or times != matrices:
                name = f"model.layers.{layer}.mlp.experts.{stack}"
                config["rank_pattern"][name] = matrices * own["rank"]
                config["alpha_pattern"][name] = times * own["alpha"]
    path.write_text(json.dumps(config))


def nf4(values):
    """bitsandbytes' codes and magnitudes of a tensor, and what it dequantises."""
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(values, blocksize=64, quant_type="nf4")
    return codes, state.absmax, functional.dequantize_4bit(codes, state)


def nf4_edges():
    """Blocks of zeros, of one value, of tiny and large ones, and of numbers beside those where the code changes."""
    import torch
    from bitsandbytes import functional

    levels = functional.get_4bit_type("nf4", device="cpu")
    limits = (levels[1:] + levels[:-1]) / 2
    below, above = (torch.nextafter(limits, torch.full_like(limits, to)) for to in (-2.0, 2.0))
    blocks = [torch.zeros(64), torch.full((64,), -0.25), torch.linspace(-1e-30, 1e-30, 64), torch.linspace(-1e38, 1e38, 64)]
    for numbers in (below, limits, above):
        for largest in (1.0, 0.5, -2.0, -4.0):
            block = torch.zeros(64)
            block[0], block[1:16] = largest, numbers * abs(largest)
            blocks.append(block)
    return torch.cat(blocks)


def make(fixture):
    import peft
    import peft.tuners.lora.layer
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, settings, lora = FIXTURES[fixture]
    lora = dict(lora)
    quantised = lora.pop("nf4", False)
    config = CONFIG_MAPPING[kind](**settings)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    generator = torch.Generator().manual_seed(11)

    def draw(p, scale):
        value = scale * torch.randn(p.shape, generator=generator, dtype=torch.float64)
        return value.bfloat16().double()

    with transformers_in_float64(), torch.no_grad():
        for n, p in sorted(model.named_parameters()):
            one = "norm" in n or (".ln_" in n and n.endswith(".weight"))
            p.copy_(draw(p, 0.2) + (1 if one else 0))
            p.copy_(p.bfloat16().double())
        # ltrain's linear layers are (out, in), those of GPT-2's Conv1D are (in, out).
        turned = {n for n, _ in model.named_parameters() if kind == "gpt2" and n.endswith(
            ("attn.c_attn.weight", "c_proj.weight", "c_fc.weight"))}
        record = {"weight." + n: (p.T if n in turned else p).bfloat16() for n, p in model.named_parameters()}
    if quantised:
        record["edges"] = nf4_edges()
        record["edges.codes"], record["edges.absmax"], record["edges.values"] = nf4(record["edges"])
        for n, p in model.named_parameters():
            if not n.endswith("_proj.weight"):
                continue
            record["codes." + n], record["absmax." + n], values = nf4(record["weight." + n].float())
            with torch.no_grad():
                p.copy_(values.double())
    with transformers_in_float64() as real_float:
        if kind != "gpt2":
            exact_rotary(model.model.rotary_emb, real_float)
        stock = None
        if kind == "qwen3_moe":
            stock = copy.deepcopy(model)
            experts_apart(model)
            model.config.model_type = "experts_apart"  # PEFT would look for the stacks
        pissa = lora.get("init_lora_weights") == "pissa"
        if pissa:  # decomposes in fp64 instead of fp32
            peft.tuners.lora.layer.torch = Float64Torch(torch)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora), autocast_adapter_dtype=False)
        model = model.double().train()
        peft.tuners.lora.layer.torch = torch
        now = {}
        if lora.get("lora_dropout"):
            counted_dropout(model, lora["lora_dropout"], now)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for n, p in sorted(trained.items()):
                if "lora_" in n and not pissa:
                    p.copy_(draw(p, 0.3))

        def saved(folder=None):
            if folder is None:
                with tempfile.TemporaryDirectory() as made:
                    return saved(made)
            model.save_pretrained(folder)
            text = (pathlib.Path(folder) / "adapter_config.json").read_text()
            from safetensors.torch import load_file
            return text, load_file(str(pathlib.Path(folder) / "adapter_model.safetensors"))

        peft_config, before = saved()
        record.update({"before." + n: t.to(torch.float32) for n, t in before.items()})
        tokens = torch.randint(0, config.vocab_size, (STEPS, BATCH, SEQ), generator=generator)
        for i in range(1, SEQ):
            tokens[:, :, i] = (3 * tokens[:, :, i - 1] + 5) % config.vocab_size
        labels = tokens.clone()
        labels[:, 1, SEQ - 4:] = -100
        magnitudes = [p for n, p in trained.items() if "magnitude" in n]
        others = [p for n, p in trained.items() if "magnitude" not in n]
        groups = [{"params": others}] + ([{"params": magnitudes, "weight_decay": 0.0}] if magnitudes else [])
        optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]),
                                      eps=ADAMW["eps"], weight_decay=ADAMW["weight_decay"])
        losses = []
        with torch.no_grad():
            record["logits"] = model.eval()(input_ids=tokens[0]).logits.to(torch.float32)
        if stock and not pissa and not lora.get("use_dora"):  # PEFT does not decompose stacks, nor scale their rows
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                saved(folder)
                add_stacks(pathlib.Path(folder) / "adapter_config.json", config.num_hidden_layers)
                loaded = peft.PeftModel.from_pretrained(stock, folder, autocast_adapter_dtype=False).double().eval()
                got = loaded(input_ids=tokens[0]).logits.to(torch.float32)
            assert torch.allclose(got, record["logits"], rtol=0, atol=1e-6), (got - record["logits"]).abs().max()
        model.train()
        for step in range(STEPS):
            now["step"] = step
            optimizer.zero_grad()
            out = model(input_ids=tokens[step], labels=labels[step])
            assert out.loss.dtype == torch.float64
            out.loss.backward()
            losses.append(out.loss.detach())
            optimizer.step()
        _, after = saved()
        record.update({"after." + n: t.to(torch.float32) for n, t in after.items()})
    targets = torch.full((STEPS, BATCH, SEQ), -1)
    targets[:, :, :-1] = labels[:, :, 1:]
    targets[targets == -100] = -1
    record["tokens"], record["targets"], record["loss"] = tokens.int(), targets.int(), torch.stack(losses)
    path = GOLDEN / f"lora_{fixture}.safetensors"
    metadata = {k: repr(v) for k, v in ADAMW.items()}
    metadata.update(config=json.dumps(dict(settings, model_type=kind)), adapter_config=peft_config,
                    versions=f"transformers {transformers.__version__}, peft {peft.__version__}")
    write_safetensors(path, record, metadata)
    print(f"{path.name}: {path.stat().st_size} bytes, loss {losses[0].item():.4f} to {losses[-1].item():.4f}")


def main():
    run_with(VERSIONS, __file__)
    import torch

    torch.set_num_threads(1)
    for name in [a for a in sys.argv[1:] if a != "--here"] or FIXTURES:
        make(name)


main()
