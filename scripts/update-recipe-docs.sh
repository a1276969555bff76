#!/bin/sh
# Writes docs/recipe.md from the table that reads recipes, and the table of Megatron-LM's flags in docs/coming-from.md
# from the one that plan reads them by. Tests compare.
set -eu
cd "$(dirname "$0")/.."
text=$("${1:-build/ltrain}" recipe keys --markdown)
printf '%s\n' "$text" > docs/recipe.md
flags=$(mktemp)
trap 'rm -f "$flags"' EXIT
"${1:-build/ltrain}" plan --flags > "$flags"
sed -i -e '/^<!-- flags: /,/^<!-- end of flags/{//!d}' -e "/^<!-- flags: /r $flags" docs/coming-from.md
