#!/bin/sh
# Two ranks whose micro-batches run one after the other, by turns (parallel.overlap_micro_batches), and with products in
# parts (parallel.async_tensor_parallel): how long compute waits for communication, and the step, alternating. Writes
# docs/measurements/compare-overlap_CPU_DATE.{md,json}. Six minutes.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_overlap.py "$@"
