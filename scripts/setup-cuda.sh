#!/usr/bin/env bash
# Gets NVIDIA's compiler and libraries for `cmake --preset cuda` where none are installed: pinned packages of PyPI,
# checked by hash, into build-cuda/toolkit. Installs nothing else and nothing twice.
# Usage: scripts/setup-cuda.sh [--force]     --force: also where a toolkit is installed
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "" | --force) ;;
  *) echo "usage: scripts/setup-cuda.sh [--force]" >&2; exit 64 ;;
esac
folder=build-cuda/toolkit
root=$folder/nvidia/cu13

# NVCC's version as one number, 1204 for 12.4; 0 where there is none.
version_of() {
  local release
  release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p') || true
  [ -n "$release" ] && echo $((${release% *} * 100 + ${release#* })) || echo 0
}
if [ -z "${1:-}" ]; then
  for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [ -n "$nvcc" ] || continue
    if (($(version_of "$nvcc") >= 1204)); then
      echo "setup-cuda: $("$nvcc" --version | grep release) is installed: $nvcc"
      exit 0
    fi
  done
fi
pins=scripts/cuda-packages.txt
if [ -x $root/bin/nvcc ] && cmp -s $pins $folder/packages.txt; then
  echo "setup-cuda: $folder is complete"
  exit 0
fi
[ "$(uname -m)" = x86_64 ] || { echo "setup-cuda: packages are pinned for x86_64, this machine is $(uname -m): install NVIDIA's toolkit" >&2; exit 1; }
# pip alone, without a say in the system's packages.
scripts/setup.sh python3-pip
echo "setup-cuda: getting $(grep -c == $pins) packages, about 1 GB, into $folder"
rm -rf $folder
mkdir -p $folder
if ! python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --only-binary :all: \
  --require-hashes --requirement $pins --target $folder; then
  rm -rf $folder
  echo "setup-cuda: pip could not get the packages of $pins (above); nothing was kept" >&2
  exit 1
fi
# nvcc and CMake look for lib64, the linker for libNAME.so.
ln -s lib $root/lib64
ln -s libcudart.so.13 $root/lib/libcudart.so
for part in nccl cudnn; do
  [ -d $folder/nvidia/$part/include ] && ln -s -t $root/include "$PWD/$folder/nvidia/$part/include/"*
done
(($(version_of $root/bin/nvcc) >= 1204)) || { echo "setup-cuda: $root/bin/nvcc does not run" >&2; exit 1; }
cp $pins $folder/packages.txt
echo "setup-cuda: $("$root/bin/nvcc" --version | grep release) in $folder"
