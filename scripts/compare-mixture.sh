#!/bin/sh
# A mixture of 8 experts, 2 a token, beside a dense model with the same active operations: tokens/s, alternating, and
# the part of the step that the router and moving rows take. Writes docs/measurements/compare-mixture_CPU_DATE.{md,json}.
# Five minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_mixture.py "$@"
