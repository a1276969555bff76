#!/usr/bin/env bash
# Builds the image of the Containerfile by buildah, on a bare Debian that it makes itself, and trains in it: what somebody does
# who has the package alone. Needs root. Usage: scripts/test-container.sh [BUILD [cuda]]
# With cuda the image gets NVIDIA's libraries, 1.1 GB from PyPI, which `ltrain doctor` must find; BUILD is then build-cuda.
# BUILDAH_OPTIONS: further options of `buildah build`, such as a volume with the settings of a proxy.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
cuda=$([ "${2:-}" = cuda ] && echo yes || echo no)
command -v buildah >/dev/null && command -v mmdebstrap >/dev/null || scripts/setup.sh buildah mmdebstrap
scripts/package.sh "$build" >/dev/null
folder=$(mktemp -d)
trap 'for c in ${containers:-}; do buildah rm "$c" >/dev/null; done; buildah rmi -f localhost/ltrain-test localhost/ltrain-base >/dev/null 2>&1; rm -rf "$folder"' EXIT
# Files that a container has, in the place of a registry.
mmdebstrap --variant=apt --quiet bookworm "$folder/debian.tar" http://deb.debian.org/debian
base=$(buildah from scratch)
buildah add --quiet "$base" "$folder/debian.tar" / >/dev/null
buildah commit --quiet --rm "$base" localhost/ltrain-base >/dev/null
# shellcheck disable=SC2086 # options are words
buildah build --quiet --isolation chroot ${BUILDAH_OPTIONS:-} --build-arg CUDA="$cuda" --build-arg BASE=localhost/ltrain-base --build-arg PACKAGES="$build/packages" -t localhost/ltrain-test . >"$folder/log" 2>&1 ||
  { cat "$folder/log" >&2; exit 1; }
container=$(buildah from localhost/ltrain-test)
containers=$container
inside() { buildah run --isolation chroot "$container" -- "$@"; }
inside ltrain --version
if [ "$cuda" = yes ]; then
  inside ltrain doctor >"$folder/doctor"
  for library in cuBLASLt NCCL cuDNN NVRTC; do
    grep -E "^ok +$library +[0-9.]+, /opt/nvidia/" "$folder/doctor" || { cat "$folder/doctor" >&2; exit 1; }
  done
fi
# The quick start's recipe on a text of the image: two ranks, a checkpoint, an answer.
inside sh -euc '
  for i in $(seq 3000); do echo "line $i of a text that repeats itself"; done >text.txt
  ltrain data build --tokenizer byte --split 90,10 --input text.txt --output runs/quickstart/data/text
  ltrain run /usr/share/ltrain/recipes/quickstart.yaml train.train_steps=20 schedule.lr_warmup_steps=5 train.eval_interval=0 launch.threads_per_rank=1
  ltrain generate runs/quickstart --prompt "line 1" --tokens 8'
# A rank is killed, the run goes on by itself, and its page says so.
inside sh -euc '
  ltrain run /usr/share/ltrain/recipes/quickstart.yaml output_dir=runs/killed train.train_steps=60 train.eval_interval=0 \
    checkpoint.save_interval=20 launch.threads_per_rank=1 launch.max_restarts=2 launch.restart_wait_seconds=0.1 2>killed.log & run=$!
  until [ -e runs/killed/checkpoints/step-00000020/COMMIT ]; do sleep 0.1; kill -0 $run; done
  set -- $(cat /proc/$run/task/*/children)
  kill -KILL $2
  wait $run
  grep "restart 1 of 2: goes on from step" killed.log
  ltrain report runs/killed --html killed.html >/dev/null
  grep -o "After step [0-9]*: restart 1, [^<]*SIGKILL[^<]*" killed.html'
buildah images --format '{{.Size}}' localhost/ltrain-test | sed 's/^/image: /'
