#!/usr/bin/env bash
# AdamW on the host's cores (offload.optimizer.update: cpu) against STREAM's triad on the same memory, by turns.
# Usage: scripts/compare.sh host-update [ELEMENTS [ROUNDS]]
# build: host_update_speed
set -euo pipefail
exec build/host_update_speed "$@"
