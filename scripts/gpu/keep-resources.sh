#!/usr/bin/env bash
# Runs the CUDA compiler and keeps what ptxas says of each kernel (-Xptxas=-v) beside the object, in OBJECT.resources;
# everything else that the compiler says goes on. It fails where ptxas says that it made Hopper's products wait for each
# other, or that registers are not shared as the source asks (C7500 to C7599): the code is right then, and up to twice as
# slow, with the same registers and spills. CMake calls it: scripts/gpu/keep-resources.sh nvcc ... -o OBJECT ...
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
of_ptxas='^ptxas info|bytes stack frame|^    [0-9]+ bytes' lost='\(C75[0-9][0-9]\)'
[ -z "$object" ] || grep -E "$of_ptxas" "$said" >"$object.resources"
grep -vE "$of_ptxas" "$said" >&2
if grep -qE "$lost" "$said"; then
  echo "keep-resources: ptxas gives up what the kernels of ${object:-this source} are written for; order their products otherwise:" >&2
  grep -E "$lost" "$said" | c++filt >&2
  [ -z "$object" ] || rm -f "$object" "$object.resources"
  ((status != 0)) || status=1
fi
exit $status
