#!/bin/sh
# Counts of the mutation tests: every collective of the data-parallel step broken in every way, one at a time.
# Usage: scripts/checks/mutation.sh [build folder]
cd "$(dirname "$0")/../.." || exit 1
exec "${1:-build}/tests/test_parity" '*mutation:*'
