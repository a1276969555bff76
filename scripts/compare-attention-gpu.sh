#!/bin/sh
# Causal attention alone on one GPU, forward and backward in bf16: ltrain's native kernels and its cuDNN beside PyTorch's
# with cuDNN and with flash, in alternating rounds. Writes OUT/compare-attention-gpu.{md,json}. Needs: build-cuda/ltrain, a GPU, python3 with torch
# (without: ltrain alone, and it says so). --dry-run prints what it would run, and needs none of them.
# Usage: scripts/compare-attention-gpu.sh [--out FOLDER] [--rounds N] [--dry-run] ...
set -e
cd "$(dirname "$0")/.."
exec python3 scripts/peers/compare_attention_gpu.py "$@"
