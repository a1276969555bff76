#!/bin/sh
# `ltrain data build` and `ltrain tokenizer train` beside Hugging Face's tokenizers and sentencepiece on as many threads:
# MB/s, alternating; ids and merges must be the same, or this fails. Writes
# docs/measurements/compare-data-build_CPU_DATE.{md,json}. Ten minutes on a quiet machine.
# Usage: scripts/compare-data-build.sh --ranks GPT2_RANK_FILE TEXT_FILE_OR_FOLDER...
# Needs `pip install tokenizers sentencepiece`; PYTHON=... names the Python that has it.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain > /dev/null
exec "${PYTHON:-python3}" scripts/peers/compare_data_build.py "$@"
