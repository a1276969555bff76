#!/usr/bin/env bash
# One archive for scripts/gpu-check.sh on a machine with a GPU that has neither this repository nor a network: stripped
# programs, the libraries they link beside the C++ runtime, token files, recipes, scripts. CUDA's own libraries come from
# that machine (Python's packages, /usr/local/cuda, the loader's path). There:
#   python3 -m tarfile -e ltrain-gpu-check.tar.xz . && ltrain-gpu-check/scripts/gpu-check.sh out
# Takes a ready build-cuda, or builds it for LTRAIN_CUDA_ARCHITECTURES (default here: 90a-real, an H100 or H200).
# Usage: scripts/package/pack-gpu-check.sh [ARCHIVE]     (default: build-cuda/ltrain-gpu-check.tar.xz)
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=$(realpath -m "${1:-build-cuda/ltrain-gpu-check.tar.xz}")
most=$((40 << 20))
if [ ! -x build-cuda/ltrain ] || [ ! -x build-cuda/tests/test_cuda ]; then
  LTRAIN_CUDA_ARCHITECTURES=${LTRAIN_CUDA_ARCHITECTURES:-90a-real} scripts/build.sh cuda ltrain test_cuda
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pack=$scratch/ltrain-gpu-check
mkdir -p "$pack"/{bin,lib,scripts/compare/programs,tokens}
for program in build-cuda/ltrain build-cuda/tests/test_cuda; do
  strip --strip-unneeded -o "$pack/bin/$(basename $program)" $program
done
# The C++ runtime and libc are those of the machine: what CUDA's driver is linked to has to be the same ones.
ldd build-cuda/ltrain build-cuda/tests/test_cuda | awk '$2 == "=>" { print $1, $3 }' | sort -u |
  while read -r name path; do
    case $name in libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libstdc++.so.* | libgcc_s.so.*) continue ;; esac
    [ -e "$path" ] || { echo "pack-gpu-check: $name is not found here ($path)" >&2; exit 1; }
    strip --strip-unneeded -o "$pack/lib/$name" "$path" 2>/dev/null || cp -L "$path" "$pack/lib/$name"
  done
cp -r recipes "$pack"
cp scripts/gpu-check.sh "$pack/scripts"
cp scripts/compare/{gpu_check,gpu_cases,gpu_measure,measure,compare_torch_gpu,compare_attention_gpu}.py "$pack/scripts/compare"
cp scripts/compare/programs/{torch_llama,torch_lora,torch_attention}.py "$pack/scripts/compare/programs"
build-cuda/ltrain data build --quiet --tokenizer byte --split 95,5 --force --input README.md docs kernels runtime \
  --exclude '*.json' '*.jsonl' --output "$pack/tokens/text"
(cd scripts/compare && python3 -B -c 'import measure, sys; measure.write_tokens(sys.argv[1], 300_000, 50_000)' "$pack/tokens/random")
mkdir -p "$(dirname "$archive")"
tar -C "$scratch" --owner=0 --group=0 -cJf "$archive" ltrain-gpu-check
size=$(stat -c %s "$archive")
((size <= most)) || { echo "pack-gpu-check: $archive has $size bytes, more than $most" >&2; exit 1; }
echo "pack-gpu-check: $archive, $((size / 1000000)) MB; $(ls "$pack/lib" | wc -l) libraries beside the programs"
