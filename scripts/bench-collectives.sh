#!/bin/sh
# Collectives between ranks of this host, through shared memory and through Gloo, alternating: medians by size.
# Writes docs/measurements/bench-collectives_CPU_DATE.{md,json}. Two minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/bench_collectives.py "$@"
