#!/bin/sh
# GPT-2 124M training on this CPU: ltrain beside the fastest of several variants of PyTorch; AdamW alone as well.
# Writes docs/measurements/compare-torch_CPU_DATE.{md,json}. Needs: build/ (scripts/build.sh), python3-torch,
# libopenblas0-openmp or libblis4-openmp. An hour on a quiet machine; --rounds 1 --steps 2 for a look.
# --newest: beside PyPI's newest PyTorch, compiled or not; makes a virtual environment (some GB) in build/venv-torch, or
# takes the Python of $PYTHON. Writes compare-torch-newest_CPU_DATE.{md,json}.
set -e
cd "$(dirname "$0")/.."
ninja -C build ltrain adamw_speed > /dev/null
case " $* " in *" --newest "*)
  venv=build/venv-torch
  if [ -z "${PYTHON:-}" ] && [ ! -x $venv/bin/python ]; then
    python3 -m venv $venv
    $venv/bin/pip install --quiet --upgrade torch numpy
  fi
  exec python3 scripts/peers/compare_torch.py --python "${PYTHON:-$venv/bin/python}" "$@" ;;
esac
exec python3 scripts/peers/compare_torch.py "$@"
