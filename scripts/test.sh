#!/usr/bin/env bash
# Builds ltrain and runs all tests. Usage: scripts/test.sh [ctest arguments]     e.g. scripts/test.sh -L parity
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/check-includes.py
scripts/check-format.sh
scripts/check-words.py
scripts/check-tests.py
scripts/build.sh cpu
scripts/test-tiers.py check build
exec scripts/run-tests.sh build "$@"
