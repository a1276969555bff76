#!/usr/bin/env bash
# Installs the packages that building and testing ltrain need, on Debian 12 (as root, or through sudo). Installs
# nothing when all are there. Usage: scripts/setup.sh [more packages ...]
set -euo pipefail
packages=(g++ cmake ninja-build ccache pkg-config libdnnl-dev libgloo-dev libcli11-dev libyaml-cpp-dev
  libfmt-dev libspdlog-dev nlohmann-json3-dev catch2 libxxhash-dev liburing-dev libpcre2-dev libutf8proc-dev
  zlib1g-dev libzstd-dev libsnappy-dev liblz4-dev libbrotli-dev libsimdjson-dev libcurl4-openssl-dev clang-format
  python3 python3-pytest hwloc-nox "$@")

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$p")
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: apt-get is not here; ltrain's packages are known for Debian 12 only. Needed: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: not root and no sudo; as root run: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
if ! install; then
  "${as_root[@]}" apt-get update >"$log" 2>&1 || { tail -n 5 "$log" >&2; echo "setup: apt-get update failed (above)" >&2; exit 1; }
  install || { tail -n 20 "$log" >&2; echo "setup: apt-get install failed (above)" >&2; exit 1; }
fi
