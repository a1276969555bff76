#!/usr/bin/env python3
"""Compares exported folders of quantized runs with compressed-tensors: read by transformers through it, every weight is
that of the steps to the bit, which compressed-tensors' own fake quantization makes of the master weights.
Usage: scripts/compare.sh quantized
Exits with 1 at a difference."""
# build: ltrain
# packages: compressed-tensors==0.20.0 transformers==5.24.0 torch safetensors
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import compressed_tensors
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

HERE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = HERE / "tests" / "golden"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RECIPE = """
task: sft
model: {{from: {golden}/trl}}
precision: {precision}
quantization: {{weights: {weights}, group_size: {group}, ignore: ["*.1.self_attn.o_proj.*"]}}
data: {{train: [{{path: {golden}/distillation/completions.jsonl}}], seq_length: 64, cache: cache, tokenizer: {{kind: byte}}}}
train: {{micro_batch_size: 8, global_batch_size: 8, train_steps: 3}}
optimizer: {{lr: 2.0e-3}}
output_dir: run
"""

sys.path.insert(0, str(HERE / "scripts" / "golden"))
spec = importlib.util.spec_from_file_location("make_golden", HERE / "scripts" / "golden" / "make-quantization-golden.py")
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)


def run(folder, *arguments):
    ltrain = os.path.abspath(os.environ.get("LTRAIN_BINARY", HERE / "build" / "ltrain"))
    done = subprocess.run([ltrain, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def step_weights(master, weights, group, dtype):
    """Scales of the fp32 master weights rounded to dtype, codes of fp32, and products rounded to dtype."""
    if dtype == torch.float32:
        return golden.fake_quantized(master, weights, group)
    groups = master.unflatten(-1, (-1, group or master.shape[-1]))
    scale = (groups.abs().amax(-1, keepdim=True) / golden.LARGEST[weights]).to(dtype)
    v = groups / scale.float()
    if weights == "fp8":
        code = v.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    else:
        code = v.clamp(-golden.LARGEST[weights] - 1, golden.LARGEST[weights]).round()
    return (code.to(dtype) * scale).flatten(-2)


def compare(folder, precision, weights, group):
    """Quantized matrices of the exported folder, and numbers of them that differ."""
    (folder / "r.yaml").write_text(RECIPE.format(golden=GOLDEN, precision=precision, weights=weights, group=group))
    run(folder, "run", "r.yaml")
    run(folder, "export", "run", "hf", "-q")
    run(folder, "export", "run", "masters", "--masters", "--dtype", "fp32", "-q")
    dtype = DTYPES[precision]
    model = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=dtype,
                                                 quantization_config=CompressedTensorsConfig(dequantize=True))
    state = model.state_dict()
    matrices = wrong = 0
    with safe_open(folder / "masters" / "model.safetensors", "pt") as file:
        for name in file.keys():
            want, got = file.get_tensor(name), state[name]
            if "_proj." in name and "1.self_attn.o_proj" not in name:
                want = step_weights(want, weights, group, dtype)
                matrices += 1
            else:
                want = want.to(dtype)
            assert got.dtype == dtype and got.shape == want.shape, (name, got.dtype, got.shape)
            bits = {2: torch.int16, 4: torch.int32}[got.element_size()]
            # An integer code has no -0.
            want = torch.where(want == 0, torch.zeros_like(want), want) if weights != "fp8" else want
            wrong += int((got.view(bits) != want.contiguous().view(bits)).sum())
    return matrices, wrong


def main():
    print(f"compressed-tensors {compressed_tensors.__version__}, transformers {transformers.__version__}")
    failed = 0
    for precision in DTYPES:
        for weights in ("int4", "int8", "fp8"):
            for group in (32, 0):
                with tempfile.TemporaryDirectory() as work:
                    matrices, wrong = compare(pathlib.Path(work), precision, weights, group)
                print(f"{precision} {weights} group_size {group}: {matrices} matrices, {wrong} weights differ")
                failed += wrong > 0 or matrices != 13
    print("failed" if failed else "all weights are equal to the bit")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
