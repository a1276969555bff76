#!/usr/bin/env python3
"""Refuses an include against the arrow app -> runtime -> models -> parallel -> kernels, and vendor headers outside
their files. Usage: scripts/check-includes.py [--self-test]"""
import pathlib
import re
import subprocess
import sys

ORDER = ["kernels", "parallel", "models", "runtime", "app"]  # each may include itself and those before it
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
VENDOR = [(re.compile(r"^(cuda|cublas|cudnn|nvtx)"), re.compile(r"_cuda\.")), (re.compile(r"^nccl\."), re.compile(r"_cuda\."))]


def problems(path, text):
    folder = path.split("/")[0]
    for number, line in enumerate(text.splitlines(), 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        target = m.group(1)
        head = target.split("/")[0]
        if folder in ORDER and (head == "tests" or head in ORDER and ORDER.index(head) > ORDER.index(folder)):
            yield f"{path}:{number}: {folder}/ may not include {target}: includes point app -> runtime -> models -> parallel -> kernels"
        for header, allowed in VENDOR:
            if header.match(target) and not allowed.search(path):
                yield f"{path}:{number}: {target} may be included in *_cuda.* files only"


def self_test():
    assert list(problems("kernels/x.cpp", '#include "models/layer.h"'))
    assert list(problems("models/x.cpp", '#include "tests/support/x.h"'))
    assert list(problems("kernels/x.cpp", "#include <cuda_runtime.h>"))
    assert not list(problems("runtime/x.cpp", '#include "models/layer.h"\n#include <vector>'))


self_test()
root = pathlib.Path(__file__).resolve().parent.parent
files = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"], cwd=root, capture_output=True, text=True, check=True)
found = [p for f in files.stdout.split() for p in problems(f, (root / f).read_text())]
print("\n".join(found) if found else f"check-includes: {len(files.stdout.split())} files")
sys.exit(1 if found else 0)
