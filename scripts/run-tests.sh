#!/usr/bin/env bash
# Runs the tests of a build folder, three for two cores at a time since many wait for processes and for limits of time
# (LTRAIN_TEST_JOBS: so many); says which failed, which could not be made here and why, where the whole log is, and
# which took longest.
# --fast runs those that take at most half a second each (tests/durations.json), --slow also those whose names begin
# with "slow:", minutes each; --record writes the times of this run into tests/durations.json.
# Usage: scripts/run-tests.sh BUILD_FOLDER [--fast | --slow] [--record] [ctest arguments]   e.g. build -L parity
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/run-tests.sh BUILD_FOLDER [ctest arguments]}
shift
leave_out=(-E ': ?slow:')
record=
while :; do
  case ${1:-} in
    --fast) leave_out=(-I "$(scripts/test-tiers.py fast "$build")") || exit ;;
    --slow) leave_out=() ;;
    --record) record=yes ;;
    *) break ;;
  esac
  shift
done
case " $* " in *" -E "* | *" -I "* | *slow*) leave_out=() ;; esac # the caller's own choice
log=$build/tests.log
rm -f "$build/Testing/Temporary/LastTestsFailed.log"
status=0
ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "${LTRAIN_TEST_JOBS:-$((($(nproc) * 3 + 1) / 2))}" "${leave_out[@]}" "$@" || status=$?
case ${leave_out[0]:-} in
  -E) echo "not run: tests that take minutes each (scripts/run-tests.sh $build --slow runs them too)" ;;
  -I) echo "not run: tests that take more than half a second each (scripts/run-tests.sh $build runs most of them)" ;;
esac
# Output of every test, also of passed ones.
cp "$build/Testing/Temporary/LastTest.log" "$log" || exit 1
if grep -q '^SKIPPED: ' "$log"; then
  echo "skipped here, with the reason:"
  sed -n 's/^SKIPPED: /  /p' "$log" | sort -u
fi
echo "these took longest:"
scripts/test-tiers.py slowest "$build"
[ -z "$record" ] || scripts/test-tiers.py record "$build"
if ((status)); then
  failed=$build/Testing/Temporary/LastTestsFailed.log
  echo "FAILED in $build:" >&2
  [ ! -s "$failed" ] || sed 's/^[0-9]*:/  /' "$failed" >&2
  echo "what all tests printed: $log" >&2
fi
exit "$status"
