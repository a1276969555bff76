#!/usr/bin/env bash
# Runs the CUDA compiler and keeps what ptxas says of each kernel (-Xptxas=-v) beside the object, in OBJECT.resources;
# everything else that the compiler says goes on. CMake calls it: scripts/keep-resources.sh nvcc ... -o OBJECT ...
set -uo pipefail
object= previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
status=$?
of_ptxas='^ptxas info|bytes stack frame|^    [0-9]+ bytes'
[ -z "$object" ] || grep -E "$of_ptxas" "$said" >"$object.resources"
grep -vE "$of_ptxas" "$said" >&2
exit $status
