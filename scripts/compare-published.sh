#!/usr/bin/env bash
# Plans beside published measurements, by their published layouts (scripts/peers/published_measurements.json).
# Usage: scripts/compare-published.sh [--fit] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh cpu ltrain >/dev/null
exec python3 scripts/peers/compare_published.py --program "${LTRAIN:-build/ltrain}" "$@"
