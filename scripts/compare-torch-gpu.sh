#!/bin/sh
# Training on one GPU: ltrain beside the fastest of several variants of PyTorch, in alternating rounds. Writes
# OUT/compare-torch-gpu.{md,json}, which name card, driver and versions. Needs: build-cuda/ltrain, a GPU, python3 with
# torch (without: ltrain alone, and it says so). --dry-run prints what it would run, and needs none of them.
# Usage: scripts/compare-torch-gpu.sh [--out FOLDER] [--budget SECONDS] [--case NAME] [--dry-run] ...
set -e
cd "$(dirname "$0")/.."
exec python3 scripts/peers/compare_torch_gpu.py "$@"
