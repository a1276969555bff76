#!/bin/sh
# The loss of fp8 beside that of bf16 over 500 steps of a llama of 10 M parameters, and the speed of bf16 over fp32 on a
# model of hidden size 512, alternating. Writes docs/measurements/compare-precision_CPU_DATE.{md,json}. The losses take
# half an hour on two quiet cores, the speed five minutes; --only loss or --only speed makes one of them.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_precision.py "$@"
