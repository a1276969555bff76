#!/usr/bin/env bash
# Compares ltrain with the newest transformers of PyPI: loads, losses and exports of tiny models of each family.
# Makes a virtual environment (some GB with torch) in build/venv-transformers, or takes the Python of PYTHON.
# Usage: scripts/compare-transformers.sh [MODEL ...]      e.g. scripts/compare-transformers.sh gpt2 mixtral
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x build/ltrain ] || scripts/build.sh cpu ltrain
python=${PYTHON:-build/venv-transformers/bin/python}
if [ -z "${PYTHON:-}" ] && [ ! -x "$python" ]; then
  python3 -m venv build/venv-transformers
  "$python" -m pip install --quiet --upgrade transformers torch
fi
exec "$python" scripts/compare-transformers.py build/ltrain "$@"
