#!/bin/sh
# Tokens a second of `ltrain generate` on this CPU, beside the time of reading the model's weights once from memory and,
# where the Python of PYTHON has torch and transformers, beside transformers' generate.
# Writes docs/measurements/compare-generation_CPU_DATE.{md,json}. Needs: build/ (scripts/build.sh), a quiet machine, and
# for the 1B shape 2.5 GB of disk and 12 GB of memory; --shapes quickstart for a look.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain memory_read > /dev/null
exec "${PYTHON:-python3}" scripts/peers/compare_generation.py "$@"
