#!/usr/bin/env bash
# Compiles and links the CUDA build, compares what its kernels need with the record, and starts, plans and trains with
# it where no GPU is. Usage: scripts/test-cuda-build.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/setup-cuda.sh
scripts/build.sh cpu ltrain # compiles what both builds have
LTRAIN_HOST_BUILD=$PWD/build scripts/build.sh cuda ltrain test_cuda test_cuda_plans test_drivers
for check in kernel-resources kernel-code kernel-products; do
  code=0
  "scripts/gpu/$check.py" build-cuda || code=$?
  ((code == 0 || code == 77)) || exit "$code"
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
step() {
  echo "== $1"
  shift
  "$@" >"$folder/out" 2>&1 || { cat "$folder/out"; echo "test-cuda-build: failed: $*" >&2; exit 1; }
}
# cuDNN and NVRTC lie beside the headers that the build found.
headers=$(sed -n 's|^CUDNN_INCLUDE:PATH=||p' build-cuda/CMakeCache.txt)
for libraries in "$headers"/../lib64 "$headers"/../../cudnn/lib; do
  [ ! -d "$libraries" ] || LTRAIN_CUDA_LIBS=${LTRAIN_CUDA_LIBS:+$LTRAIN_CUDA_LIBS:}$(realpath "$libraries")
done
export LTRAIN_CUDA_LIBS
# Neither a GPU nor a library of CUDA is needed to start, to plan and to train on the CPU.
if ldd build-cuda/ltrain | grep -E 'libcu|libnccl|libcudnn'; then
  echo "test-cuda-build: build-cuda/ltrain links to libraries of CUDA (above); they are to be opened when needed" >&2
  exit 1
fi
step "version" build-cuda/ltrain --version
step "doctor" build-cuda/ltrain doctor
grep -q "cuDNN's attention  *9" "$folder/out" || { cat "$folder/out"; echo "test-cuda-build: doctor finds no cuDNN" >&2; exit 1; }
step "plans of cuDNN's attention" build-cuda/tests/test_cuda_plans
if grep '^SKIPPED: ' "$folder/out"; then echo "test-cuda-build: no plans of cuDNN (above)" >&2; exit 1; fi
step "a driver that is too old" build-cuda/tests/test_drivers "a driver that is too old*"
step "a driver without a card" build-cuda/tests/test_drivers "a driver that shows no card*"
step "ranges for NVIDIA's tools" build-cuda/tests/test_cuda "[nvtx]"
step "plan" build-cuda/ltrain plan recipes/gpt2-124m.yaml
step "data" build-cuda/ltrain data build --tokenizer byte --split 95,5 --input README.md --output "$folder/text"
step "train two ranks" build-cuda/ltrain run recipes/quickstart.yaml "data.train=[{path: $folder/text-train}]" "data.eval=[{path: $folder/text-val}]" \
  train.train_steps=2 schedule.lr_warmup_steps=1 train.micro_batch_size=1 train.global_batch_size=2 data.seq_length=64 model.num_hidden_layers=2 \
  "output_dir=$folder/run"
echo "test-cuda-build: passed"
