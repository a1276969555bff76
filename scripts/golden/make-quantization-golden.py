#!/usr/bin/env python3
"""Writes tests/golden/quantization: weights before and after fake quantization by compressed-tensors, and the first 20
losses of PyTorch with such weights in the linear layers of tests/golden/trl's Llama, with straight-through gradients,
on the completions of make-distillation-golden.py."""
import importlib.util
import json
import sys

from golden_tools import GOLDEN, run_with, write_safetensors

PACKAGES = ["compressed-tensors==0.20.0", "transformers==5.24.0", "torch"]
FOLDER, MODEL = GOLDEN / "quantization", GOLDEN / "trl"
STEPS = 20
LARGEST = {"int4": 7, "int8": 127, "fp8": 448}
SETTINGS = {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "clip": 1.0}
RUNS = {
    "int4 in groups": {"weights": "int4", "group_size": 32},
    "int4 in rows, some": {"weights": "int4", "group_size": 0, "ignore": ["*.down_proj.*", "*.o_proj.*"]},
    "int8 in rows": {"weights": "int8", "group_size": 0},
    "fp8 in rows": {"weights": "fp8", "group_size": 0},
}


def fake_quantized(w, weights, group_size):
    """The weights that compressed-tensors makes of w, with scales by which the largest of a group is a code."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    args = QuantizationArgs(num_bits=4 if weights == "int4" else 8, type="float" if weights == "fp8" else "int",
                            symmetric=True, strategy="group" if group_size else "channel", group_size=group_size or None)
    groups = w.unflatten(-1, (-1, group_size or w.shape[-1]))
    scale = groups.abs().amax(-1) / LARGEST[weights]
    scale = torch.where(scale == 0, torch.finfo(w.dtype).eps, scale)
    out = fake_quantize(w, scale, None, args)
    return torch.where(out == 0, torch.zeros_like(out), out) if weights != "fp8" else out  # integers have no -0


def train(weights, group_size, ignore=()):
    import fnmatch

    import torch
    from torch.nn.utils import parametrize
    from transformers import LlamaForCausalLM

    spec = importlib.util.spec_from_file_location("distillation", GOLDEN.parents[1] / "scripts/golden/make-distillation-golden.py")
    distillation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(distillation)

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(_, w):
            return fake_quantized(w, weights, group_size)

        @staticmethod
        def backward(_, grad):
            return grad

    class Quantized(torch.nn.Module):
        def forward(self, w):
            return Straight.apply(w)

    torch.manual_seed(1)
    model = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    inputs, targets = distillation.batch()
    counted = targets >= 0
    plain = float(torch.nn.functional.cross_entropy(model(input_ids=inputs).logits[counted], targets[counted]).detach())
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            if not any(fnmatch.fnmatchcase(name + ".weight", p) for p in ignore):
                parametrize.register_parametrization(module, "weight", Quantized())
    adamw = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                              eps=SETTINGS["eps"], weight_decay=0.0)
    steps = []
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(input_ids=inputs).logits[counted], targets[counted])
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS["clip"])
        adamw.step()
        steps.append({"loss": float(loss.detach().double()), "grad_norm": float(norm)})
    return {"plain": plain, "steps": steps}


def values():
    """Weights with ties, zeros and groups of zeros; and what they become in fp32 and fp64."""
    import torch

    torch.manual_seed(5)
    w = torch.randn(6, 128, dtype=torch.float64) * torch.logspace(-6, 3, 6, dtype=torch.float64)[:, None]
    w[1, :32] = 0
    w[2] = torch.round(w[2] * 1e3) / 1e3
    w[3, :64] = torch.arange(64) * 0.125 - 4  # codes half-way
    w = w + 0.0  # no -0
    tensors = {"w": w.float()}
    for dtype, word in ((torch.float32, "f32"), (torch.float64, "f64")):
        for weights in ("int4", "int8", "fp8"):
            for group in (32, 0):
                tensors[f"{weights}.{group}.{word}"] = fake_quantized(w.float().to(dtype), weights, group)
    return tensors


def main():
    run_with(PACKAGES, __file__)
    import compressed_tensors
    import torch
    import transformers

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    write_safetensors(FOLDER / "values.safetensors", values(), {"by": "compressed-tensors " + compressed_tensors.__version__})
    result = {"versions": {"compressed_tensors": compressed_tensors.__version__, "transformers": transformers.__version__,
                           "torch": torch.__version__},
              "settings": SETTINGS, "runs": {}}
    for name, options in RUNS.items():
        result["runs"][name] = {"options": options, **train(**options)}
    (FOLDER / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
