#!/usr/bin/env bash
# Compares ltrain with other programs, and its own settings with each other.
# Usage: scripts/compare.sh                  lists the comparisons
#        scripts/compare.sh NAME [OPTION...]  runs scripts/compare/compare_NAME.py (or NAME.py, or a .sh, or one of its
#                                             folder data)
# A comparison names what it needs in lines of its own: "# build: TARGETS" and "# packages: ..." of PyPI, which go into a
# virtual environment in build/; PYTHON=... names a Python that has them already.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=scripts/compare

if (($# == 0)); then
  for script in "$folder"/{,data/}{compare,bench,measure}_*.{py,sh}; do
    [ -f "$script" ] || continue
    name=$(basename "${script%.*}")
    about=$(sed -n '/^\("""\|# \)/{s/^\("""\|# \)//;p;q;}' "$script")
    printf '%-20s %s\n' "$(echo "${name#compare_}" | tr _ -)" "${about%\"\"\"}"
  done
  exit
fi
name=$(echo "$1" | tr - _)
shift
for script in "$folder"/{,data/}{compare_,}"$name".{sh,py}; do
  [ ! -f "$script" ] || break
done
if [ ! -f "$script" ]; then
  echo "compare: $name: expected one of the names that scripts/compare.sh lists" >&2
  exit 64
fi
wanted() { sed -n "s/^# $1: //p" "$script"; }

targets=$(wanted build)
# shellcheck disable=SC2086 # targets are words
[ -z "$targets" ] || scripts/build.sh cpu $targets >/dev/null
[ "${script%.sh}" = "$script" ] || exec bash "$script" "$@"
python=${PYTHON:-python3}
packages=$(wanted packages)
if [ -n "$packages" ] && [ -z "${PYTHON:-}" ]; then
  venv=build/venv-$name
  python=$venv/bin/python
  if [ ! -x "$python" ]; then
    python3 -m venv "$venv"
    # shellcheck disable=SC2086 # packages are words
    "$python" -m pip install --quiet --upgrade $packages
  fi
fi
PYTHONPATH=$PWD/$folder${PYTHONPATH:+:$PYTHONPATH} exec "$python" "$script" "$@"
