#!/usr/bin/env bash
# Has llama.cpp's converter and llama.cpp itself read what `ltrain export` writes, for a tiny model of each family.
# Makes a virtual environment in build/venv-llama-cpp (builds llama.cpp: ten minutes and more), or takes the Python of
# PYTHON, which has llama_cpp, gguf, transformers and sentencepiece, and LLAMA_CPP, the folder of llama.cpp's sources.
# Usage: scripts/compare.sh llama-cpp [MODEL ...]      e.g. scripts/compare.sh llama-cpp gpt2 mixtral
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x build/ltrain ] || scripts/build.sh cpu ltrain
venv=build/venv-llama-cpp
if [ -z "${PYTHON:-}" ] && [ ! -d $venv/sources ]; then
  python3 -m venv $venv
  $venv/bin/pip install --quiet --upgrade scikit-build-core cmake ninja transformers torch sentencepiece gguf
  $venv/bin/pip download --quiet --no-deps --no-binary :all: --no-build-isolation -d $venv llama-cpp-python
  $venv/bin/pip install --quiet $venv/llama_cpp_python-*.tar.gz
  mkdir -p $venv/unpacked
  tar xzf $venv/llama_cpp_python-*.tar.gz -C $venv/unpacked --strip-components=1
  ln -sfn unpacked/vendor/llama.cpp $venv/sources
fi
exec "${PYTHON:-$venv/bin/python}" scripts/compare/compare_llama_cpp.py build/ltrain "${LLAMA_CPP:-$venv/sources}" "$@"
