#!/usr/bin/env bash
# Gets NVIDIA's compiler and libraries for `cmake --preset cuda` where none are installed: pinned packages of PyPI,
# checked by hash, into build-cuda/toolkit. And, wherever they are missing, the headers of cuDNN's frontend into
# build-cuda/cudnn-frontend/include, and a disassembler into build-cuda/disassembler. Installs nothing else and nothing
# twice.
# Usage: scripts/setup-cuda.sh [--force]     --force: also where a toolkit is installed
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "" | --force) ;;
  *) echo "usage: scripts/setup-cuda.sh [--force]" >&2; exit 64 ;;
esac
folder=build-cuda/toolkit
root=$folder/nvidia/cu13

# The headers of cuDNN's frontend (MIT), out of a package that is made for one Python and run by none. `$1`: the toolkit's
# include. Without them the build goes on, and attention is ltrain's native kernels' alone.
frontend() {
  local headers=build-cuda/cudnn-frontend/include pins=scripts/package/cudnn-frontend.txt wheels
  if [ -f "$1/cudnn_frontend.h" ] || [ -f /usr/include/cudnn_frontend.h ]; then return; fi
  if [ -f $headers/cudnn_frontend.h ] && cmp -s $pins $headers/package.txt; then
    echo "setup-cuda: $headers is complete"
    return
  fi
  python3 -m pip --version >/dev/null 2>&1 || scripts/setup.sh python3-pip
  rm -rf $headers
  mkdir -p $headers  # headers include each other by this name
  wheels=$(mktemp -d)
  if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --platform manylinux_2_28_x86_64 --implementation cp --python-version 3.11 --abi cp311 --requirement $pins --dest "$wheels" &&
    python3 -c 'import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
for name in z.namelist():
    if name.startswith("include/") and ".." not in name: z.extract(name, sys.argv[2])' "$wheels"/*.whl "$wheels/out"; then
    mv "$wheels"/out/include/* $headers
    cp $pins $headers/package.txt
    echo "setup-cuda: $(sed -n 's/ --hash.*//;/==/p' $pins)'s headers in $headers"
  else
    rm -rf $headers
    echo "setup-cuda: pip could not get the package of $pins (above): this build will have no attention of cuDNN" >&2
  fi
  rm -rf "$wheels"
}

# Gets the disassembler of scripts/gpu/kernel-code.py. `$1`: the toolkit's bin. Without it that check is skipped.
disassembler() {
  local to=build-cuda/disassembler pins=scripts/package/cuda-disassembler.txt
  if [ -x "$1/cuobjdump" ] && [ -x "$1/nvdisasm" ] || cmp -s $pins $to/packages.txt; then return; fi
  python3 -m pip --version >/dev/null 2>&1 || scripts/setup.sh python3-pip
  rm -rf $to
  mkdir -p $to
  if python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --only-binary :all: \
    --require-hashes --requirement $pins --target $to; then
    cp $pins $to/packages.txt
    echo "setup-cuda: cuobjdump and nvdisasm in $to"
  else
    rm -rf $to
    echo "setup-cuda: pip could not get the packages of $pins (above): machine code will not be compared" >&2
  fi
}

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
      frontend "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include"
      disassembler "$(dirname "$(readlink -f "$nvcc")")"
      exit 0
    fi
  done
fi
pins=scripts/package/cuda-packages.txt
if [ -x $root/bin/nvcc ] && cmp -s $pins $folder/packages.txt; then
  echo "setup-cuda: $folder is complete"
  frontend $root/include
  disassembler $root/bin
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
frontend $root/include
disassembler $root/bin
