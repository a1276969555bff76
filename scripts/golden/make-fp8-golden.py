#!/usr/bin/env python3
"""Writes tests/golden/fp8_blocks.safetensors: a matrix in FP8 with a factor for each block of 128 by 128, and its values.

Bytes are random but for the two that are no number. The values are PyTorch's of float8_e4m3fn times the block's factor in
fp32, as bf16: what DeepSeek's conversion of its published weights computes. tests/runtime/weights/fp8_blocks_test.cpp
reads the matrix as a folder of Hugging Face has it. Makes a virtual environment and installs PyPI's torch (CPU) there;
or, with --here, takes that of the Python that runs it.
"""
from golden_tools import GOLDEN, run_with, write_safetensors

VERSIONS = ["torch==2.15.0"]
ROWS, COLUMNS, BLOCK = 300, 200, 128


def main():
    run_with(VERSIONS, __file__)
    import torch

    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 256, (ROWS, COLUMNS), generator=generator, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0
    blocks = ((ROWS + BLOCK - 1) // BLOCK, (COLUMNS + BLOCK - 1) // BLOCK)
    scales = torch.rand(blocks, generator=generator) * 1e-3 + 1e-5
    factors = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:ROWS, :COLUMNS]
    values = (codes.view(torch.float8_e4m3fn).float() * factors).bfloat16()
    assert values.isfinite().all()
    path = GOLDEN / "fp8_blocks.safetensors"
    write_safetensors(path, {"codes": codes, "scales": scales, "values": values}, {})
    print(f"{path}: {path.stat().st_size} bytes")


main()
