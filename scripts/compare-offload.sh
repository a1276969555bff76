#!/bin/sh
# Optimizer states, weights and activations in files beside resident ones: tokens/s, alternating; arena and losses
# (exact, or this fails), resident memory. Writes docs/measurements/compare-offload_CPU_DATE.{md,json}.
# Ten minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_offload.py "$@"
