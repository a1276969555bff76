#!/usr/bin/env bash
# Builds ltrain and runs all tests. Usage: scripts/test.sh [ctest arguments]     e.g. scripts/test.sh -L parity
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/checks/check-includes.py
scripts/checks/check-format.sh
scripts/checks/check-words.py
scripts/checks/check-tests.py
scripts/checks/check-names.py
scripts/checks/check-sizes.py
scripts/checks/check-aggregates.py
scripts/build.sh cpu
scripts/test-tiers.py check build
exec scripts/run-tests.sh build "$@"
