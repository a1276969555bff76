#!/usr/bin/env bash
# Refuses C++ files that clang-format would change. Usage: scripts/checks/check-format.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${files[@]}"
else
  clang-format --dry-run -Werror "${files[@]}" || { echo "check-format: run scripts/checks/check-format.sh --fix" >&2; exit 1; }
  echo "check-format: ${#files[@]} files"
fi
