#!/usr/bin/env bash
# From a fresh clone to a trained model: installs packages, builds, makes token files from text, trains
# recipes/quickstart.yaml on two CPU processes, prints a sample. Start it again and it resumes.
# Usage: scripts/quickstart.sh [FOLDER OR FILE OF TEXT ...]     (default: this repository's sources and documents)
set -euo pipefail
given=()
for path in "$@"; do
  [ -e "$path" ] || { echo "quickstart: $path: not found" >&2; exit 1; }
  given+=("$(realpath "$path")")
done
cd "$(dirname "$0")/.."
trap 'code=$?; [ $code -eq 0 ] || echo "quickstart: stopped with exit code $code (the lines above say why)" >&2' EXIT

echo "== packages"
scripts/setup.sh
echo "== build"
scripts/build.sh cpu ltrain
echo "== data"
run=runs/quickstart
made_from=$run/data/made-from # paths of the text
if [ ${#given[@]} -gt 0 ] && [ -e $run/checkpoints ] && [ "$(cat $made_from 2>/dev/null)" != "${given[*]}" ]; then
  aside=$run-until-$(date +%Y%m%d-%H%M%S)
  mv $run "$aside"
  echo "the run on other text is kept in $aside"
fi
if [ ${#given[@]} -gt 0 ] || [ ! -e $run/data/text-train.idx ]; then
  text=("${given[@]}")
  # Records of measurements are left out.
  ((${#text[@]})) || text=(README.md docs app planner runtime models parallel kernels base scripts --exclude '*.json' '*.jsonl')
  build/ltrain data build --tokenizer byte --split 95,5 --force --input "${text[@]}" --output $run/data/text
  echo "${given[*]}" >$made_from
fi
echo "== train (Ctrl-C saves and stops; start again to go on)"
build/ltrain run recipes/quickstart.yaml
echo "== sample"
build/ltrain generate $run --prompt "The " --tokens 240 --context-shift
cat <<TEXT
== next
  build/ltrain eval $run                       loss and perplexity on held-out text
  build/ltrain generate $run --prompt "int "   more text, from a prompt of yours
  scripts/quickstart.sh ~/notes                      the same on a folder or file of your own
  build/ltrain plan recipes/gpt2-124m.yaml           what a larger model needs, before it is started
  build/ltrain run recipes/moe.yaml                  another recipe on the same text (recipes/ has more)
Every setting: docs/recipe.md. What it can do and how: README.md.
TEXT
