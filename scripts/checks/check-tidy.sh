#!/usr/bin/env bash
# Looks for faults with clang-tidy (.clang-tidy has the list), in the given .cpp files or in all of the program's. About
# four seconds a file, so that it is not part of the tests.
# Usage: scripts/checks/check-tidy.sh [FILE ...]     e.g. scripts/checks/check-tidy.sh $(git diff --name-only main -- '*.cpp')
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh clang clang-tidy
files=("$@")
((${#files[@]})) || mapfile -t files < <(git ls-files 'app/*.cpp' 'runtime/*.cpp' 'parallel/*.cpp' 'models/*.cpp' 'kernels/*.cpp' | grep -v '_cuda\.cpp$')
# Without precompiled headers, which are another compiler's or not there.
cmake --preset clang -B build-tidy -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p build-tidy --quiet 2>/dev/null || {
  echo "check-tidy: faults above" >&2
  exit 1
}
echo "check-tidy: ${#files[@]} files"
