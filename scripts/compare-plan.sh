#!/bin/sh
# Plans of 55 recipes against what running them used: arena and wire bytes (exact, or this fails), resident memory,
# step time. Run `build/ltrain bench` before on the quiet machine, or step times are priced by a guess.
# Writes docs/measurements/compare-plan_CPU_DATE.{md,json}. Six minutes.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_plan.py "$@"
