#!/bin/sh
# Writes docs/recipe.md from the table that reads recipes. A test compares the two.
set -eu
cd "$(dirname "$0")/.."
binary=${1:-build/ltrain}
"$binary" recipe keys --markdown > docs/recipe.md.tmp
mv docs/recipe.md.tmp docs/recipe.md
