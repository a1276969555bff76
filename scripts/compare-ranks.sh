#!/bin/sh
# Two data-parallel ranks of one thread over one rank of one thread (bound to one core): tokens/s, alternating.
# Writes docs/measurements/compare-ranks_CPU_DATE.{md,json}. Ten minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_ranks.py "$@"
