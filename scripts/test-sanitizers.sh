#!/usr/bin/env bash
# Runs the tests under AddressSanitizer with UndefinedBehaviorSanitizer, and those with several threads under
# ThreadSanitizer. Usage: scripts/test-sanitizers.sh [asan|tsan]
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:-all}
# libgomp is not instrumented: one OpenMP thread a rank, so that no parallel region hides a race or invents one.
export OMP_NUM_THREADS=1 LTRAIN_TEST_SLOW=4
if [ "$which" != tsan ]; then
  scripts/build.sh asan
  echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
  ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    ctest --test-dir build-asan --output-on-failure --parallel 2 --label-exclude 'peer'
fi
if [ "$which" != asan ]; then
  scripts/build.sh tsan
  echo "== ThreadSanitizer"
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan-suppressions.txt \
    ctest --test-dir build-tsan --output-on-failure --parallel 2 -L 'parallel|parity|kernels'
fi
