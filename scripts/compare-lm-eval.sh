#!/usr/bin/env bash
# Compares `ltrain eval --choices` with EleutherAI's lm-evaluation-harness of PyPI: log-likelihoods and accuracies of a
# tiny model, which ltrain trains and exports. Makes a virtual environment (some GB with torch) in build/venv-lm-eval, or
# takes the Python of PYTHON.
# Usage: scripts/compare-lm-eval.sh
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x build/ltrain ] || scripts/build.sh cpu ltrain
python=${PYTHON:-build/venv-lm-eval/bin/python}
if [ -z "${PYTHON:-}" ] && [ ! -x "$python" ]; then
  python3 -m venv build/venv-lm-eval
  "$python" -m pip install --quiet --upgrade "lm_eval[hf]"
fi
exec "$python" scripts/compare-lm-eval.py build/ltrain
