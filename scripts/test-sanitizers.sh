#!/usr/bin/env bash
# Runs the tests under AddressSanitizer with LeakSanitizer and UndefinedBehaviorSanitizer, and those with several
# threads under ThreadSanitizer; prints at its end how long each part took. What a sanitizer finds fails the test in
# which it happens, also in a program that the test started (tests/support/outcome.h).
# Usage: scripts/test-sanitizers.sh [asan|tsan] [--whole]     --whole: with what takes long and finds little, which CI
# leaves out (below)
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
which=all whole=
for argument; do
  if [ "$argument" = --whole ]; then whole=yes; else which=$argument; fi
done
case $which in all | asan | tsan) ;; *)
  echo "test-sanitizers: $which: must be asan or tsan; without it both" >&2
  exit 64
  ;;
esac

# libgomp is not instrumented: one OpenMP thread a rank, so that no parallel region hides a race or invents one.
export OMP_NUM_THREADS=1
# Bounds on time, of tests and of the program.
export LTRAIN_TIME_SCALE=4
common=exitcode=99:halt_on_error=1
export ASAN_OPTIONS=$common:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=$common:print_stacktrace=1
export TSAN_OPTIONS=$common:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan-suppressions.txt:print_suppressions=0

times=$(mktemp)
table=() failed=()
finish() {
  local status=$?
  rm -f "$times"
  ((${#table[@]})) || return
  printf '== %8s %10s  %s\n' seconds processor part
  printf '%s\n' "${table[@]}"
  ((status == 0)) || echo "test-sanitizers: FAILED: ${failed[*]:-interrupted}" >&2
}
trap finish EXIT

# part NAME COMMAND...: runs it; a failure is counted, and the parts after it still run.
part() {
  local name=$1 status=0 TIMEFORMAT='%R %U %S' real user system note=
  shift
  echo "== $name"
  { time "$@" 2>&3 || status=$?; } 3>&2 2>"$times"
  read -r real user system < <(tail -n 1 "$times")
  if ((status)); then
    failed+=("$name")
    note=" FAILED"
  fi
  table+=("$(printf '== %8.0f %10.0f  %s%s' "$real" "$(awk "BEGIN { print $user + $system }")" "$name" "$note")")
  return "$status"
}

# Tests are chosen by risk, and not all run under each sanitizer:
# AddressSanitizer and UndefinedBehaviorSanitizer: everything that reads files, sockets and arguments from outside
# (runtime), that has pointers of its own (kernels, parallel), and every layer (models). Not parity, app and faults,
# which run the same code under more layouts, and not the emulated GPU, which guards its memory itself.
# ThreadSanitizer: groups, loaders, checkpoints, launches: what has threads of its own, for each the test that drives it;
# not recipes, plans (but the bench), tokenizers and metrics, which have one thread (tests/CMakeLists.txt leaves them out). Neither the search
# and campaigns, which compute with numbers of their own alone.
# With --whole also whole steps with pipelines, ZeRO and offload, and killed ranks, which run the same groups and streams.
many_runs='slow:|mutation:|covering array: every row'
many_runs+='|docs/compositions.md has the table'
# Hundreds of processes, whose system calls a filter of the kernel traps.
[ "$whole" ] || many_runs+='|killed before any system call'
# Whole models by differences (their parts have tests of their own), and thousands of recipes through one parser.
[ "$whole" ] || many_runs+='|gradients of whole models|gradients of layers with windows|what is suggested where'
[ "$whole" ] || many_runs+='|a changed key changes the model|bit for bit: in-process, 1 to 8 ranks'
# Tests that start the program. Its readers have tests of their own, and it would take a sixth of the time to build.
[ "$whole" ] || many_runs+='|runtime: ?cli:'
echo "== not run under a sanitizer, for its time: $many_runs"
if [ "$which" != tsan ]; then
  part "build, AddressSanitizer and UndefinedBehaviorSanitizer" \
    scripts/build.sh asan ${whole:+ltrain} test_base test_kernels test_parallel test_models test_runtime test_planner
  part "tests, AddressSanitizer and UndefinedBehaviorSanitizer" \
    scripts/run-tests.sh build-asan -L '^(base|kernels|parallel|models|runtime|planner)$' -E "$many_runs" || true
fi
if [ "$which" != asan ]; then
  # Kernels spread over OpenMP threads are left to the other sanitizers, as are models.
  targets=(test_parallel test_runtime) labels='parallel|runtime'
  if [ "$whole" ]; then
    targets+=(ltrain test_kernels test_parity test_faults) labels+='|faults'
  fi
  part "build, ThreadSanitizer" scripts/build.sh tsan "${targets[@]}"
  # One thread, or the schedules and stages of others in more combinations.
  many_runs+='|no reader of JSON|pipelines compose with tied embeddings|compared in n log n'
  # Schedules are computed by one thread.
  many_runs+='|bubble|lowered programs|computes early'
  part "tests, ThreadSanitizer" scripts/run-tests.sh build-tsan -L "$labels" -E "$many_runs" || true
  if [ "$whole" ]; then
    part "streams and whole steps, ThreadSanitizer" scripts/run-tests.sh build-tsan \
      -R '^kernels:.*stream|^parity:.*(pipelines? |ZeRO|two levels|offload|chunk)' -E "$many_runs" || true
  fi
fi
((${#failed[@]} == 0))
