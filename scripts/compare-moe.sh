#!/bin/sh
# An MoE model of 8 experts, 2 a token, at even routing and as its router learns, beside a dense model with the same
# active operations: tokens/s, alternating, and the part of the step that the router and moving rows take. Writes
# docs/measurements/compare-moe_CPU_DATE.{md,json}. Seven minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_moe.py "$@"
