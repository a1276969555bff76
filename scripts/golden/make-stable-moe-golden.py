#!/usr/bin/env python3
"""Writes tests/golden/hf_olmoe_stable.safetensors: 20 steps of StableMoE (arXiv:2204.08396) on a tiny olmoe, in fp64.

The model and its layers are transformers' own; the router's forward is replaced. Until FREEZE its experts are those of
the highest logits, and a table (vocabulary, experts) of each layer learns them: the loss has the mean over tokens and
their choices of the cross-entropy of the table's row of the token. From FREEZE on the experts of a token are the best of
its row, as the table was when step FREEZE began, and the router's own probabilities weigh them. torch.optim.AdamW moves
all parameters. The file has the weights before step 1 (bf16, exact), tokens and targets of each step, its token loss and
its loss of distillation, and the experts of each token id (layers, vocabulary, k). tests/models/stable_moe_test.cpp
computes the same with ltrain. Makes a virtual environment and installs PyPI's torch (CPU) and transformers there, some
gigabytes; or, with --here, takes those of the Python that runs it.
"""
import json

from golden_tools import GOLDEN, run_with, transformers_in_float64, write_safetensors

VERSIONS = ["torch==2.15.0", "transformers==5.24.0"]
STEPS, FREEZE, BATCH, SEQ, LR = 20, 8, 2, 16, 1e-2
CONFIG = dict(vocab_size=41, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=20,
              initializer_range=0.02, tie_word_embeddings=False, intermediate_size=12, num_key_value_heads=4,
              num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, output_router_logits=False)


class Tables:
    """Scores of token ids for each layer, and what the running step sees."""

    def __init__(self, layers, vocab, experts, k, generator):
        import torch

        self.k, self.tokens, self.frozen, self.loss = k, None, None, 0
        rows = 0.02 * torch.randn((layers, vocab, experts), generator=generator, dtype=torch.float64)
        self.scores = [torch.nn.Parameter(r.bfloat16().double()) for r in rows]

    def freeze(self):
        import torch

        self.frozen = torch.stack([s.detach().topk(self.k, -1).indices for s in self.scores])

    def router(self, layer, weight):
        import torch

        def forward(hidden):
            logits = torch.nn.functional.linear(hidden, weight)
            ids = self.tokens.flatten()
            if self.frozen is not None:
                experts = self.frozen[layer][ids]
            else:
                experts = logits.topk(self.k, -1).indices
                best = logits.detach().topk(self.k + 1, -1).values
                assert (best[:, :-1] - best[:, 1:]).abs().min() > 1e-9, "a choice that rounding could change"
                log = torch.log_softmax(self.scores[layer][ids], -1)
                self.loss = self.loss - log.gather(-1, experts).mean()
            values = torch.softmax(logits, -1).gather(-1, experts)
            return logits, values / values.sum(-1, keepdim=True), experts
        return forward


def fix_rotary(model, config, real_float):
    """ltrain's rotary table is fp32 in every precision, rounded from fp64."""
    import torch

    rotary, d = model.model.rotary_emb, config.hidden_size // config.num_attention_heads
    rotary.inv_freq = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
    tables = rotary.forward
    rotary.forward = lambda *a, **k: tuple(real_float(t).to(torch.float64) for t in tables(*a, **k))


def main():
    run_with(VERSIONS, __file__)
    import torch
    import transformers
    from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

    torch.set_num_threads(1)
    config = transformers.OlmoeConfig(**CONFIG)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double().train()
    model.model.embed_tokens.padding_idx = None  # its row would have no gradient
    generator, record = torch.Generator().manual_seed(12), {}
    tables = Tables(config.num_hidden_layers, config.vocab_size, config.num_experts, config.num_experts_per_tok, generator)
    for layer, router in enumerate(m for m in model.modules() if isinstance(m, OlmoeTopKRouter)):
        router.forward = tables.router(layer, router.weight)
        record[f"weight.model.layers.{layer}.mlp.gate.token_scores.weight"] = tables.scores[layer].detach().bfloat16()
    with torch.no_grad():
        for n, p in sorted(model.named_parameters()):
            value = 0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64) + (1 if p.dim() == 1 else 0)
            p.copy_((value * (4 if n.endswith("gate.weight") else 1)).bfloat16().double())
            record["weight." + n] = p.detach().bfloat16()
    tokens = torch.randint(0, config.vocab_size, (STEPS, BATCH, SEQ + 1), generator=generator)
    optimizer = torch.optim.AdamW([*model.parameters(), *tables.scores], lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses, taught = [], []
    with transformers_in_float64() as real_float:
        fix_rotary(model, config, real_float)
        for step in range(1, STEPS + 1):
            if step == FREEZE:
                tables.freeze()
            tables.tokens, tables.loss = tokens[step - 1, :, :-1], torch.zeros((), dtype=torch.float64)
            logits = model(input_ids=tables.tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[step - 1, :, 1:].flatten())
            assert loss.dtype == torch.float64
            losses.append(loss.item()), taught.append(tables.loss.item())
            optimizer.zero_grad()
            (loss + tables.loss).backward()
            optimizer.step()
    record["tokens"], record["targets"] = tokens[:, :, :-1].int().contiguous(), tokens[:, :, 1:].int().contiguous()
    record["losses"] = torch.tensor(losses, dtype=torch.float64)
    record["distillation"] = torch.tensor(taught, dtype=torch.float64)
    record["token_experts"] = tables.frozen.int()
    path = GOLDEN / "hf_olmoe_stable.safetensors"
    write_safetensors(path, record, {"config": json.dumps(dict(CONFIG, model_type="olmoe")), "freeze_step": str(FREEZE),
                                     "lr": str(LR), "transformers": transformers.__version__})
    print(f"{path}: {path.stat().st_size} bytes, losses {losses[0]:.6f} to {losses[-1]:.6f}, of distillation "
          f"{taught[0]:.6f} to {taught[FREEZE - 2]:.6f}")


main()
