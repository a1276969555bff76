#!/usr/bin/env bash
# Runs the tests of a build folder two at a time; says which failed, which could not be made here and why, and where
# the whole log is. Tests whose names begin with "slow:" take minutes each: they run with --slow, alone with -R slow:.
# Usage: scripts/run-tests.sh BUILD_FOLDER [--slow] [ctest arguments]   e.g. build -L parity
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/run-tests.sh BUILD_FOLDER [ctest arguments]}
shift
leave_out=(-E ': ?slow:')
if [ "${1:-}" = --slow ]; then
  leave_out=()
  shift
fi
case " $* " in *" -E "* | *slow*) leave_out=() ;; esac # the caller's own choice
log=$build/tests.log
rm -f "$build/Testing/Temporary/LastTestsFailed.log"
status=0
ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel 2 "${leave_out[@]}" "$@" || status=$?
((${#leave_out[@]} == 0)) || echo "not run: tests that take minutes each (scripts/run-tests.sh $build --slow runs them too)"
# What every test printed, also those that passed.
cp "$build/Testing/Temporary/LastTest.log" "$log" || exit 1
if grep -q '^SKIPPED: ' "$log"; then
  echo "skipped here, with the reason:"
  sed -n 's/^SKIPPED: /  /p' "$log" | sort -u
fi
if ((status)); then
  failed=$build/Testing/Temporary/LastTestsFailed.log
  echo "FAILED in $build:" >&2
  [ ! -s "$failed" ] || sed 's/^[0-9]*:/  /' "$failed" >&2
  echo "what all tests printed: $log" >&2
fi
exit "$status"
