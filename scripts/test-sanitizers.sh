#!/usr/bin/env bash
# Runs the tests of kernels, models, parallel code and parity under AddressSanitizer with UndefinedBehaviorSanitizer,
# and those with several threads under ThreadSanitizer. Usage: scripts/test-sanitizers.sh [asan|tsan]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
which=${1:-all}
# libgomp is not instrumented: one OpenMP thread a rank, so that no parallel region hides a race or invents one.
export OMP_NUM_THREADS=1
# Thousands of runs of what other tests of parity run once.
many_runs='mutation:|covering array: every row|a checkpoint of any layout|every composition that the table calls supported'
TIMEFORMAT='== %R s (%U s of processor time)'
if [ "$which" != tsan ]; then
  echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
  time scripts/build.sh asan test_kernels test_models test_parallel test_parity
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  time ctest --test-dir build-asan --output-on-failure --no-tests=error --parallel 2 -L 'kernels|models|parallel|parity' -E "$many_runs"
fi
if [ "$which" != asan ]; then
  # Kernels spread over OpenMP threads are left to the other sanitizers; streams, groups and whole steps are here.
  echo "== ThreadSanitizer"
  time scripts/build.sh tsan test_kernels test_parallel test_parity
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan-suppressions.txt
  time ctest --test-dir build-tsan --output-on-failure --no-tests=error --parallel 2 -L 'parallel|parity' -E "$many_runs"
  time build-tsan/tests/test_kernels '*stream*'
fi
