#!/usr/bin/env bash
# The pack of scripts/package/pack-gpu-check.sh in a root that has nothing but a shell, coreutils, tar and Python's standard
# library: its CPU parts must pass there, each check of a GPU must be skipped by name, and a library that is missing must
# be named. Usage: scripts/test-gpu-pack.sh [ARCHIVE]     (as root or through sudo; default: packs build-cuda anew)
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
as_root=()
((EUID == 0)) || as_root=(sudo)
trap '"${as_root[@]}" rm -rf "$scratch"' EXIT
archive=${1:-$scratch/pack.tar.xz}
(($#)) || scripts/package/pack-gpu-check.sh "$archive"
root=$scratch/root
mkdir -p "$root"/{proc,dev,tmp,home,usr/bin}
put() {  # a program or library, by its absolute path, and what it links
  local path
  mkdir -p "$root$(dirname "$1")"
  cp -Ln "$1" "$root$1" 2>/dev/null || true
  { ldd "$1" 2>/dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }' |
    while read -r path; do
      mkdir -p "$root$(dirname "$path")"
      [ -e "$root$path" ] || cp -L "$path" "$root$path"
    done
}
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
for program in bash env dirname cat rm mkdir tar xz nproc sleep; do put "$(command -v $program)"; done
put "$python"
library=$(python3 -c 'import os; print(os.path.dirname(os.__file__))')
mkdir -p "$root$library"
tar -C "$library" --exclude=site-packages --exclude=dist-packages --exclude=test --exclude=__pycache__ --exclude='config-*' -cf - . |
  tar -C "$root$library" -xf -
for extension in "$library"/lib-dynload/*.so; do put "$extension"; done
# The C++ runtime of whatever is there: that of this machine.
put "$(ldd build-cuda/ltrain | awk '$1 ~ /^libstdc/ { print $3 }')"
ln -sf "$python" "$root/usr/bin/python3"
[ -e "$root/bin" ] || ln -s usr/bin "$root/bin"
[ -e "$root/bin/bash" ] || ln -s "$(command -v bash)" "$root/bin/bash"
inside() {  # COMMAND, in the root, with its own mounts
  "${as_root[@]}" unshare --mount --fork bash -c '
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" || exit 1
    exec chroot "$0" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/home bash -c "cd /home; $1"' "$root" "$1"
}
cp "$archive" "$root/home/pack.tar.xz"
inside 'python3 -m tarfile -e pack.tar.xz . && ltrain-gpu-check/scripts/gpu-check.sh out --seconds 240' || {
  echo "test-gpu-pack: failed in the bare root (above)" >&2
  exit 1
}
python3 - "$root/home/out" <<'PY'
import json, os, sys
out = sys.argv[1]
lines = [json.loads(line) for line in open(os.path.join(out, "results.jsonl"))]
passed = [x["name"] for x in lines if x["result"] == "passed"]
skipped = [x for x in lines if x["result"] == "skipped"]
wanted = ["the program starts", "doctor", "tokens", "plans of all recipes", "one CPU process", "two CPU processes"]
assert passed == wanted, f"passed {passed}, expected {wanted}"
assert len(skipped) == len(lines) - len(wanted) and len(skipped) > 80, (len(skipped), len(lines))
assert all(x["why"].startswith("no GPU") for x in skipped), [x for x in skipped if not x["why"].startswith("no GPU")][:3]
files = os.listdir(out)
assert len(files) <= 8 and {"gpu-check.md", "results.jsonl", "environment.txt", "logs.tar.xz"} <= set(files), files
print(f"test-gpu-pack: {len(passed)} checks passed on the CPU, {len(skipped)} skipped by name, {len(files)} files")
PY
# A library too few must not pass for a machine without a GPU.
rm "$root"/home/ltrain-gpu-check/lib/libdnnl.so.*
if inside 'ltrain-gpu-check/scripts/gpu-check.sh broken --seconds 60' >"$scratch/broken" 2>&1; then
  cat "$scratch/broken"
  echo "test-gpu-pack: passed without libdnnl" >&2
  exit 1
fi
grep -q 'the program starts: failed: .*libdnnl' "$scratch/broken" || { cat "$scratch/broken"; echo "test-gpu-pack: libdnnl is not named" >&2; exit 1; }
echo "test-gpu-pack: passed"
