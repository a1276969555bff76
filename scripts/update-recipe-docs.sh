#!/bin/sh
# Writes docs/recipe.md from the table that reads recipes. A test compares the two.
set -eu
cd "$(dirname "$0")/.."
text=$("${1:-build/ltrain}" recipe keys --markdown)
printf '%s\n' "$text" > docs/recipe.md
