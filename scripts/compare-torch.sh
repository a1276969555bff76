#!/bin/sh
# GPT-2 124M training on this CPU: ltrain beside the fastest of several variants of PyTorch; AdamW alone as well.
# Writes docs/measurements/compare-torch_CPU_DATE.{md,json}. Needs: build/ (scripts/build.sh), python3-torch,
# libopenblas0-openmp or libblis4-openmp. An hour on a quiet machine; --rounds 1 --steps 2 for a look.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain adamw_speed > /dev/null
exec python3 scripts/peers/compare_torch.py "$@"
