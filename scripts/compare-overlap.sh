#!/bin/sh
# Two ranks whose micro-batches run one after the other and by turns (parallel.overlap_micro_batches): how long compute
# waits for communication, and the step, alternating. Writes docs/measurements/compare-overlap_CPU_DATE.{md,json}. Five
# minutes.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_overlap.py "$@"
