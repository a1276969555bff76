#!/bin/sh
# How long `ltrain import` and `ltrain export` take beside copying the same files, and what memory they need.
# Writes docs/measurements/compare-weights_CPU_DATE.{md,json}. Needs: build/ (scripts/build.sh), a quiet machine, and for
# the 1B shape 13 GB of disk; --shape tiny for a look.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_weights.py "$@"
