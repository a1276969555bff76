#!/usr/bin/env bash
# All that needs a GPU, on a machine with one and no network, in ten minutes: every op against the CPU's, jobs of every
# axis with their ranks on one card, failures, a 1B step by op, compute-sanitizer, PyTorch beside it. OUT/gpu-check.md is the
# table, OUT/results.jsonl has each result as soon as it is known; what is kept of them is kept under docs/measurements.
# Runs in a checkout with a ready build-cuda (or builds it), or in a pack of scripts/package/pack-gpu-check.sh. Without a GPU the
# parts for the CPU run and the others are skipped by name.
# Usage: scripts/gpu-check.sh [OUT] [--seconds N] [--only REGEX]     (default: gpu-check, 580)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 >/dev/null || { echo "gpu-check: python3 is not there" >&2; exit 69; }
[ -x "$root/bin/ltrain" ] || [ -x "$root/build-cuda/tests/test_cuda" ] || (cd "$root" && scripts/build.sh cuda ltrain test_cuda)
PYTHONPATH=$root/scripts/compare${PYTHONPATH:+:$PYTHONPATH} exec python3 "$root/scripts/compare/gpu_check.py" "$@"
