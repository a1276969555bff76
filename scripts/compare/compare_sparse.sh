#!/usr/bin/env bash
# f32 matmuls on the CPU that skip zeros of 2:4 sparse weights and output gradients beside dense ones, in pairs: times as
# JSON.
# Usage: scripts/compare.sh sparse [m n k [rounds [threads [kept group]]]]
# build: sparse_speed
set -euo pipefail
exec build/sparse_speed "$@"
