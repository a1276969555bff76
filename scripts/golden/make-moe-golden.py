#!/usr/bin/env python3
"""Writes tests/golden/hf_*.safetensors: tiny MoE models, computed by transformers' own code in fp64.

For mixtral, qwen3_moe and olmoe (those named *_one have one expert a token, with a weight of 1) each file holds random
weights (bf16, exact), tokens and targets of one batch, the token loss, transformers' loss for balance
(load_balancing_loss_func) and the gradient of every parameter of the sum of both with the class's own
router_aux_loss_coef; its config.json is in the metadata. In olmoe_top_p a token has the fewest experts whose
probabilities sum to TOP_P, at most num_experts_per_tok, by a cumulative sum in the router's forward; it has no loss for
balance. In olmoe_given the experts of each token are given (tensor "given", layers, tokens, k), and the router's forward
gathers its own probabilities of them, as replay of routing does (R3, arXiv:2510.11370). In olmoe_zero each layer has
longcat_flash's MoE module and router in the place of its own: two of its experts are the identity, weights are scaled,
and experts are chosen with a correction bias (tensor "correction_bias", layers, experts); "taken" are the choices of
experts that compute. In olmoe_top_p_entropy the objective has ENTROPY times the mean entropy of a token's
probabilities, of each layer (arXiv:2403.07652), by autograd. tests/models/moe_golden_test.cpp computes the same with ltrain. Makes a virtual environment and installs PyPI's torch (CPU) and transformers there, some gigabytes; or, with
--here, takes those of the Python that runs it. Names of files after it: these alone.

transformers computes norms, rotations, routers and softmax in fp32 whatever the model's type is. Here torch.float32 and
torch.float stand for fp64 inside its modules, so that a whole fp64 computation by its code is compared.
"""
import json
import sys

from golden_tools import GOLDEN, run_with, transformers_in_float64, write_safetensors

VERSIONS = ["torch==2.15.0", "transformers==5.23.0"]
BATCH, SEQ = 2, 16

COMMON = dict(vocab_size=41, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=20,
              initializer_range=0.02, tie_word_embeddings=False, output_router_logits=True)
CONFIGS = {
    "mixtral": dict(COMMON, intermediate_size=16, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2),
    "qwen3_moe": dict(COMMON, intermediate_size=32, num_key_value_heads=1, head_dim=8, num_experts=6,
                      num_experts_per_tok=3, moe_intermediate_size=12, mlp_only_layers=[1], norm_topk_prob=True,
                      tie_word_embeddings=True),
    "olmoe": dict(COMMON, intermediate_size=12, num_key_value_heads=4, num_experts=6, num_experts_per_tok=2),
}
ONE = "_one"
for family in list(CONFIGS):
    CONFIGS[family + ONE] = dict(CONFIGS[family], num_experts_per_tok=1)
for family in ("qwen3_moe", "olmoe"):  # mixtral has no key for it
    CONFIGS[family + ONE]["norm_topk_prob"] = True
TOP_P = 0.9
CONFIGS["olmoe_top_p"] = dict(CONFIGS["olmoe"], num_hidden_layers=2, num_experts_per_tok=3, output_router_logits=False)
ENTROPY = 0.05
CONFIGS["olmoe_top_p_entropy"] = CONFIGS["olmoe_top_p"]
ZERO = "_zero"
ZERO_EXPERTS, SCALE = 2, 1.5
CONFIGS["olmoe" + ZERO] = dict(CONFIGS["olmoe"], num_hidden_layers=2, num_experts_per_tok=3, output_router_logits=False)
GIVEN = "_given"
CONFIGS["olmoe" + GIVEN] = dict(CONFIGS["olmoe"], num_hidden_layers=2, norm_topk_prob=True, output_router_logits=False)


def give_experts(model):
    """Routers take random experts, and weigh them by their own probabilities of these, divided by their sum."""
    import torch
    from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

    generator = torch.Generator().manual_seed(8)  # apart, so that weights and tokens are those of the other files
    given = []
    for router in [m for m in model.modules() if isinstance(m, OlmoeTopKRouter)]:
        scores = torch.rand((BATCH * SEQ, router.num_experts), generator=generator)
        experts = scores.argsort(-1)[:, :router.top_k]
        given.append(experts)

        def forward(hidden, router=router, experts=experts):
            logits = torch.nn.functional.linear(hidden, router.weight)
            values = torch.softmax(logits, -1).gather(-1, experts)
            return logits, values / values.sum(-1, keepdim=True), experts
        router.forward = forward
    return torch.stack(given)


def put_longcat_moe(model):
    """Each layer's mlp is LongcatFlash's MoE module. Returns the correction biases and the modules."""
    import torch
    from transformers.models.longcat_flash.configuration_longcat_flash import LongcatFlashConfig
    from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashMoE

    c = model.config
    longcat = LongcatFlashConfig(hidden_size=c.hidden_size, n_routed_experts=c.num_experts, zero_expert_num=ZERO_EXPERTS,
                                 moe_topk=c.num_experts_per_tok, expert_ffn_hidden_size=c.intermediate_size,
                                 routed_scaling_factor=SCALE, hidden_act=c.hidden_act)
    longcat._experts_implementation = "eager"
    modules = [LongcatFlashMoE(longcat).double() for _ in model.model.layers]
    generator = torch.Generator().manual_seed(9)
    for layer, moe in zip(model.model.layers, modules):
        layer.mlp = moe
        bias = moe.router.e_score_correction_bias
        bias.copy_((0.1 * torch.randn(bias.shape, generator=generator)).bfloat16())
    return torch.stack([m.router.e_score_correction_bias for m in modules]), modules


def entropies(logits):
    """Mean over the tokens of the entropy of their probabilities."""
    import torch

    log = torch.log_softmax(logits, -1)
    return -(log.exp() * log).sum(-1).mean()


def choose_by_top_p(model):
    """Leaves out experts behind those that sum to TOP_P. Their index is the number of experts, which the class skips."""
    import torch
    from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

    taken, all_logits = [], []
    for router in [m for m in model.modules() if isinstance(m, OlmoeTopKRouter)]:
        def forward(hidden, router=router):
            logits = torch.nn.functional.linear(hidden, router.weight)
            values, indices = torch.softmax(logits, -1).sort(-1, descending=True)
            before = values.cumsum(-1) - values
            chosen = (before < TOP_P) & (torch.arange(router.num_experts) < router.top_k)
            assert (before - TOP_P).abs().min() > 1e-9, "a sum that rounding could move over the bound"
            taken.append(chosen.sum(-1))
            all_logits.append(logits)
            return logits, (values * chosen)[:, :router.top_k], indices.where(chosen, router.num_experts)[:, :router.top_k]
        router.forward = forward
    return taken, all_logits


def make(name):
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    entropy = name.endswith("_entropy")
    top_p = name.removesuffix("_entropy").endswith("_top_p")
    given, zero = name.endswith(GIVEN), name.endswith(ZERO)
    family = name.split("_" if name.startswith(("olmoe", "mixtral")) else ONE)[0]
    config = CONFIG_MAPPING[family](**CONFIGS[name])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double().train()
    taken, all_logits = choose_by_top_p(model) if top_p else ([], [])
    if zero:
        biases, modules = put_longcat_moe(model)
    with transformers_in_float64() as real_float:
        generator = torch.Generator().manual_seed(7)
        record = {}
        if given:
            record["given"] = give_experts(model).int()
        if zero:
            record["correction_bias"] = biases
            for moe in modules:
                def keep(module, inputs, outputs):
                    taken.append((outputs[2] < module.n_routed_experts - ZERO_EXPERTS).sum(-1))
                moe.router.register_forward_hook(keep)
        with torch.no_grad():
            for n, p in sorted(model.named_parameters()):
                value = 0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
                if p.dim() == 1:
                    value += 1  # norms
                if n.endswith(("gate.weight", "classifier.weight")):
                    value *= 4  # a router that has made up its mind
                p.copy_(value.bfloat16().double())
        # Rotary tables of the model were made in fp32.
        rotary = model.model.rotary_emb
        d = model.config.hidden_size // model.config.num_attention_heads if getattr(config, "head_dim", None) is None else config.head_dim
        inv_freq = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
        assert torch.allclose(rotary.inv_freq.double(), inv_freq, rtol=1e-6), "not the rotary embedding that is expected"
        rotary.inv_freq = inv_freq
        tables = rotary.forward
        # ltrain's table is fp32 in every precision, rounded from fp64.
        rotary.forward = lambda *a, **k: tuple(real_float(t).to(torch.float64) for t in tables(*a, **k))

        tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ), generator=generator)
        labels = tokens.clone()
        labels[1, SEQ - 4:] = -100  # not counted, and routed all the same
        out = model(input_ids=tokens, labels=labels)
        total = out.loss
        balance = torch.zeros((), dtype=torch.float64) if top_p or given or zero else out.aux_loss
        if entropy:
            record["entropy_loss"] = ENTROPY * sum(map(entropies, all_logits)).reshape(1)
            total = total + record["entropy_loss"][0]
            record["entropy_loss"] = record["entropy_loss"].detach()
        assert total.dtype == torch.float64 and balance.dtype == torch.float64, (total.dtype, balance.dtype)
        total.backward()
        prefix = lambda n: n.replace(".mlp.", ".block_sparse_moe.") if family == "mixtral" else n
        prefix = (lambda n: n.replace("router.classifier", "gate")) if zero else prefix
        for n, p in model.named_parameters():
            assert p.grad is not None, n
            # LongcatFlashExperts has rows of gate_up_proj for the identity, which nothing reads.
            real = config.num_experts if zero and "gate_up_proj" in n else len(p)
            assert real == len(p) or p.grad[real:].abs().max() == 0
            record["weight." + prefix(n)] = p.detach()[:real].bfloat16()
            record["grad." + prefix(n)] = p.grad[:real]
        targets = torch.full((BATCH, SEQ), -1)
        targets[:, :-1] = labels[:, 1:]
        targets[targets == -100] = -1
        record["tokens"], record["targets"] = tokens.int(), targets.int()
        record["aux_loss"] = balance.detach().reshape(1)
        record["token_loss"] = out.loss.detach().reshape(1) - config.router_aux_loss_coef * balance.detach()
        if top_p or zero:
            record["taken"] = torch.stack(taken).sum(-1).int()  # choices of each layer

    path = GOLDEN / f"hf_{name}.safetensors"
    write = dict(CONFIGS[name], model_type=family)
    metadata = {"config": json.dumps(write), "transformers": transformers.__version__}
    if top_p:
        metadata["top_p"] = str(TOP_P)
    if entropy:
        metadata["entropy_coeff"] = str(ENTROPY)
    if zero:
        metadata["zero_experts"], metadata["scale"] = str(ZERO_EXPERTS), str(SCALE)
    write_safetensors(path, record, metadata)
    print(f"{path}: {path.stat().st_size} bytes, loss {record['token_loss'].item():.6f}, balance "
          f"{record['aux_loss'].item():.6f} times {config.router_aux_loss_coef}")


def main():
    run_with(VERSIONS, __file__)
    import torch

    torch.set_num_threads(1)
    for name in [a for a in sys.argv[1:] if a != "--here"] or CONFIGS:
        make(name)


main()
