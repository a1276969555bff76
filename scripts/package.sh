#!/usr/bin/env bash
# Makes a .deb, a .tar.gz and their SHA-256 sums from a build, and tries the .deb: its files, its dependencies, and the
# program of an unpacked copy.
# Usage: scripts/package.sh [BUILD [FOLDER]]; BUILD: build, FOLDER: BUILD/packages
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
folder=${2:-$build/packages}
[ -x "$build/ltrain" ] || {
  echo "package: $build/ltrain is not there: scripts/build.sh cpu ltrain" >&2
  exit 1
}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
log=$(mktemp)
root=$(mktemp -d)
trap 'rm -rf "$log" "$root"' EXIT
# Not `cmake --build`, which would build all tests first.
(cd "$build" && cpack -B "$folder") >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
rm -rf "$folder/_CPack_Packages"

deb=$(find "$folder" -maxdepth 1 -name 'ltrain_*.deb' -newer "$log" | head -n 1)
[ -n "$deb" ] || deb=$(find "$folder" -maxdepth 1 -name 'ltrain_*.deb' | sort | tail -n 1)
(cd "$folder" && sha256sum -c ./*.sha256)

# Files that must be there, by their paths in the package.
dpkg-deb -c "$deb" >"$log"
for file in usr/bin/ltrain usr/share/ltrain/recipes/quickstart.yaml usr/share/man/man1/ltrain.1 usr/share/man/man1/ltrain-run.1 \
  usr/share/man/man1/ltrain-data-build.1 usr/share/bash-completion/completions/ltrain usr/share/zsh/vendor-completions/_ltrain \
  usr/share/fish/vendor_completions.d/ltrain.fish; do
  grep -q " \./$file\$" "$log" || {
    echo "package: $deb has no $file" >&2
    exit 1
  }
done
if grep -E ' \./usr/(local|include|lib/cmake)| \./(tmp|home|root|work)' "$log"; then
  echo "package: $deb has files where none belong (above)" >&2
  exit 1
fi

# Every library that the program loads belongs to a package that it depends on, so that `apt install` brings it.
depends=$(dpkg-deb -f "$deb" Depends)
echo "Depends: $depends"
for library in libc6 libstdc++6 libfmt libgloo libdnnl liburing libyaml-cpp libsimdjson; do
  [[ ", $depends" == *", $library"* ]] || {
    echo "package: $deb does not depend on $library" >&2
    exit 1
  }
done

# An unpacked copy runs, with a completion that bash can read and a page that man can set.
dpkg-deb -x "$deb" "$root"
"$root/usr/bin/ltrain" --version
"$root/usr/bin/ltrain" recipe check "$root/usr/share/ltrain/recipes/quickstart.yaml" >"$log" 2>&1 || {
  # Data of the quick start is made by its script; only this may be missing.
  grep -q 'data' "$log" || { cat "$log" >&2; exit 1; }
}
bash -n "$root/usr/share/bash-completion/completions/ltrain"
if command -v man >/dev/null; then
  LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 "$root/usr/share/man/man1/ltrain-run.1" 2>"$log" >/dev/null
  [ ! -s "$log" ] || {
    cat "$log" >&2
    exit 1
  }
fi
ls -l "$folder"
