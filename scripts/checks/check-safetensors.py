#!/usr/bin/env python3
"""Compares ltrain's safetensors files with the reference library's (pip install safetensors numpy).

  check-safetensors.py golden FILE   writes the file that tests/runtime/checkpoint compares its own writer with
  check-safetensors.py read FILE     reads a file of ltrain's: exits non-zero if the library refuses it
"""
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


def golden_tensors():
    # The same as golden_items() in tests/runtime/checkpoint/safetensors_test.cpp.
    return {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a.weight": np.arange(4, dtype=np.float32) * 0.5,
        "count": np.array(7, dtype=np.int64),
        "ids": np.arange(5, dtype=np.uint16),
        "bytes": np.arange(3, dtype=np.uint8),
        "empty": np.zeros((0, 4), dtype=np.float32),
        'odd "name" \\ é': np.array([1.25], dtype=np.float64),
    }


def main():
    command, path = sys.argv[1:3]
    if command == "golden":
        save_file(golden_tensors(), path, metadata={"format": "pt"})
        return
    with safe_open(path, framework="np") as f:
        print("metadata", f.metadata())
        for name in f.keys():
            t = f.get_slice(name)
            print(name, t.get_dtype(), t.get_shape())
        wanted = golden_tensors()
        if set(f.keys()) == set(wanted):
            for name, value in wanted.items():
                read = f.get_tensor(name)
                assert read.dtype == value.dtype and read.shape == value.shape and (read == value).all(), name
            print("equal to the golden tensors")


if __name__ == "__main__":
    main()
