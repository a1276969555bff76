#!/bin/sh
# Parallel layouts of two ranks of one thread beside each other: ZB-H1 over 1F1B, tensor parallelism over one rank,
# ZeRO-3 over ZeRO-1: tokens/s, alternating. Writes docs/measurements/compare-layouts_CPU_DATE.{md,json}.
# Ten minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_layouts.py "$@"
