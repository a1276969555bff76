// The lists of data sources of a recipe.
#pragma once
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

struct ListedSource {
  const char* key;  ///< data.train, data.stages or data.eval
  const DataSource* source;
};

/// Sources of data.train, then of data.stages, then of data.eval. Valid until the recipe changes.
std::vector<ListedSource> all_sources(const Recipe& recipe);

}  // namespace ltrain
