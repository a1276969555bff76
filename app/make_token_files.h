// Token files of a recipe's sources, for the commands that make them.
#pragma once
#include "runtime/check/tokenized_sources.h"

namespace ltrain::app {

/// Makes token files of sources that lack them, with a progress line unless `quiet`.
void make_token_files(const Recipe& recipe, MadeFiles which, bool quiet);

}  // namespace ltrain::app
