#!/bin/sh
# An MoE model with and without model.moe.row_budget, at even routing, at a skew of three even shares and with all tokens
# to one rank: step time, alternating, and peak memory beside the plan. Writes
# docs/measurements/compare-row-budget_CPU_DATE.{md,json}. Five minutes on a quiet machine.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec python3 scripts/peers/compare_row_budget.py "$@"
