#!/usr/bin/env python3
"""Writes tests/golden/importance.json: importance of layers and neurons by the activations of transformers' models in fp64.

The models and tokens are those of tests/golden/family_*.safetensors (make-family-golden.py). Forward hooks take each
layer's input and output and the input of each down projection, on three samples. A neuron's importance is that of
Minitron (arXiv:2407.14679): the L2 norm over samples of the mean over tokens of its magnitude; a layer's is 1 - the mean
over tokens of torch's cosine_similarity of input and output. An expert's saliency is that of REAP (arXiv:2510.13999): the
mean over the tokens that chose it of its weight times the L2 norm of its output. tests/models/activation_importance_test.cpp computes the same
with ltrain. Makes a virtual environment with PyPI's torch and transformers, or, with --here, takes those of the Python that
runs it.
"""
import contextlib
import json

from golden_tools import GOLDEN, exact_rotary, run_with, transformers_in_float64

VERSIONS = ["torch==2.15.0", "transformers==5.24.0", "safetensors"]
FIXTURES = ["llama", "gpt2_gelu", "olmo2", "gemma2"]  # norms before sublayers, after them, and both
SPARSE_FIXTURES = ["mixtral", "qwen3_moe", "olmoe"]
SAMPLES = 3


@contextlib.contextmanager
def model_of(fixture):
    """A fixture's model in fp64, and its first tokens."""
    import torch
    import transformers
    from safetensors import safe_open

    with safe_open(GOLDEN / f"family_{fixture}.safetensors", "pt") as f:
        settings = json.loads(f.metadata()["config"])
        weights = {n[7:]: f.get_tensor(n) for n in f.keys() if n.startswith("weight.")}
        tokens = f.get_tensor("tokens").long().flatten(0, 1)[:SAMPLES]
    config = transformers.AutoConfig.for_model(**settings)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    gpt2 = config.model_type == "gpt2"
    with transformers_in_float64() as real_float, torch.no_grad():
        for n, p in model.named_parameters():
            w = weights[n.replace(".mlp.", ".block_sparse_moe.") if config.model_type == "mixtral" else n].double()
            p.copy_(w.T if gpt2 and n.startswith("transformer.h.") and w.dim() == 2 else w)
        if not gpt2:
            exact_rotary(model.model.rotary_emb, real_float)
        yield model, tokens


def measure(fixture):
    import torch.nn.functional as F

    with model_of(fixture) as (model, tokens):
        inputs, hidden = [], []
        gpt2 = model.config.model_type == "gpt2"
        layers = model.transformer.h if gpt2 else model.model.layers
        for layer in layers:
            layer.register_forward_pre_hook(lambda m, a, k: inputs.append(a[0] if a else k["hidden_states"]), with_kwargs=True)
            down = layer.mlp.c_proj if gpt2 else layer.mlp.down_proj
            down.register_forward_pre_hook(lambda m, a: hidden.append(a[0]))
        last = model.transformer.ln_f if gpt2 else model.model.norm
        last.register_forward_pre_hook(lambda m, a: inputs.append(a[0]))
        model(tokens)
        cosines = [F.cosine_similarity(x, y, dim=-1).mean() for x, y in zip(inputs, inputs[1:])]
        return {"layers": [(1 - c).item().hex() for c in cosines],
                "neurons": [[v.item().hex() for v in h.abs().mean(1).pow(2).sum(0).sqrt()] for h in hidden]}


def measure_experts(fixture):
    import torch

    with model_of(fixture) as (model, tokens):
        seen = []  # layer, experts' module, input, choices and weights
        for number, layer in enumerate(model.model.layers):
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts.register_forward_pre_hook(
                    lambda m, a, k, number=number: seen.append((number, m, *a, *k.values())), with_kwargs=True)
        model(tokens)
        saliency = {}
        for number, module, x, chosen, weights in seen[:]:
            of_layer = []
            for e in range(model.config.num_local_experts if fixture == "mixtral" else model.config.num_experts):
                rows, places = torch.where(chosen == e)
                alone = module.forward(x[rows], torch.full((len(rows), 1), e), torch.ones(len(rows), 1, dtype=x.dtype))
                scores = weights[rows, places] * alone.norm(dim=-1)
                of_layer.append((scores.mean() if len(rows) else torch.zeros(())).item().hex())
            saliency[str(number)] = of_layer
        return {"experts": saliency}


def main():
    run_with(VERSIONS, __file__)
    with open(GOLDEN / "importance.json", "w") as out:
        json.dump({f: measure(f) for f in FIXTURES} | {f: measure_experts(f) for f in SPARSE_FIXTURES}, out, indent=0)
        out.write("\n")


if __name__ == "__main__":
    main()
