#!/bin/bash
# Time from nothing to nothing: two ranks started, joined, one all-reduce, ended. Prints median and spread.
# Usage: scripts/compare.sh bench-launch [ranks] [repeats]; LTRAIN=path of the program. The goal is a median below 100 ms.
set -euo pipefail
cd "$(dirname "$0")/../.."
ltrain=${LTRAIN:-build/ltrain}
ranks=${1:-2}
repeats=${2:-30}

for _ in 1 2 3; do "$ltrain" selftest allreduce --ranks "$ranks" >/dev/null; done
for ((i = 0; i < repeats; i++)); do
  begin=$(date +%s%N)
  "$ltrain" selftest allreduce --ranks "$ranks" >/dev/null
  end=$(date +%s%N)
  echo $(((end - begin) / 1000))
done | sort -n | awk -v ranks="$ranks" '
  { v[NR] = $1 / 1000 }
  END {
    printf "launch of %d ranks, %d runs: median %.1f ms, 10%% %.1f, 90%% %.1f, min %.1f, max %.1f\n", ranks, NR,
      v[int((NR + 1) / 2)], v[int(NR * 0.1) + 1], v[int(NR * 0.9)], v[1], v[NR]
    exit (v[int((NR + 1) / 2)] < 100 ? 0 : 1)
  }'
