#!/bin/sh
# What docs/claims.md measures: balance loss and the spread of experts' loads, capacity and the loss, recomputation and
# the time of a step. Writes docs/measurements/claims_CPU_DATE.{md,json}. Ten minutes on a quiet machine; the text of
# scripts/quickstart.sh has to be there.
set -e
cd "$(dirname "$0")/.."
[ -f runs/quickstart/data/text-train.bin ] || { echo "measure-claims: no runs/quickstart/data; scripts/quickstart.sh makes it" >&2; exit 1; }
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/measure_claims.py "$@"
