// Rules over more than one setting.
#pragma once
#include "runtime/recipe/problems.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Everything that does not depend on the number of ranks. Notes name settings that have no effect.
void check_rules(const Recipe& recipe, const RecipeOrigins& origins, Problems& problems,
                 std::vector<std::string>& notes);
/// The rest.
void check_layout(const Recipe& recipe, const RecipeOrigins& origins, int64_t world_size, Problems& problems);

}  // namespace ltrain::recipe
