#!/usr/bin/env python3
"""Writes tests/golden/mxfp4.safetensors: experts of a tiny gpt_oss in MXFP4, and what transformers dequantizes them to.

Blocks and scales are random bytes, scales such that values are finite. tests/runtime/weights/mxfp4_test.cpp reads both
as a folder of Hugging Face has them. Makes a virtual environment and installs PyPI's torch (CPU) and transformers there;
or, with --here, takes those of the Python that runs it.
"""
from golden_tools import GOLDEN, run_with, write_safetensors

VERSIONS = ["torch==2.15.0", "transformers==5.23.0"]
EXPERTS, HIDDEN, WIDTH = 3, 64, 32


def main():
    run_with(VERSIONS, __file__)
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(3)
    record = {}
    for name, rows, columns in [("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)]:
        groups = columns // 32
        blocks = torch.randint(0, 256, (EXPERTS, rows, groups, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(97, 135, (EXPERTS, rows, groups), generator=generator, dtype=torch.uint8)
        record[name + "_blocks"], record[name + "_scales"] = blocks, scales
        record[name] = convert_moe_packed_tensors(blocks.clone(), scales.clone())
        assert record[name].shape == (EXPERTS, columns, rows) and record[name].isfinite().all()
    path = GOLDEN / "mxfp4.safetensors"
    write_safetensors(path, record, {})
    print(f"{path}: {path.stat().st_size} bytes")


main()
