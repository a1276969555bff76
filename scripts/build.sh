#!/usr/bin/env bash
# Configures and builds a preset of CMakePresets.json. For the presets cpu and cuda LTRAIN_WERROR=ON makes warnings errors,
# and LTRAIN_UNITY=OFF compiles file by file, for work on the code; LTRAIN_HOST_BUILD=FOLDER makes the preset cuda link what
# another build has compiled (CMakeLists.txt), and LTRAIN_CUDA_ARCHITECTURES=90a-real compile its kernels for fewer cards.
# With the same options, ccache has what both presets compile.
# Usage: scripts/build.sh PRESET [target ...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/build.sh PRESET [target ...]}
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
options=()
case $preset in cpu | cuda) options=(-DLTRAIN_WERROR="${LTRAIN_WERROR:-OFF}" -DLTRAIN_UNITY="${LTRAIN_UNITY:-ON}") ;; esac
if [ "$preset" = cuda ]; then
  options+=(-DLTRAIN_HOST_BUILD="${LTRAIN_HOST_BUILD:-}")
  [ -z "${LTRAIN_CUDA_ARCHITECTURES:-}" ] || options+=(-DCMAKE_CUDA_ARCHITECTURES="$LTRAIN_CUDA_ARCHITECTURES")
fi
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  echo "build: cmake --preset $preset failed (above)" >&2
  exit 1
fi
grep -A 2 '^CMake Warning' "$log" >&2 || true
targets=()
(($#)) && targets=(--target "$@")
cmake --build --preset "$preset" "${targets[@]}"
