// Other data.stages for a run that goes on.
#pragma once
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// The value of a recipe's data.stages as JSON, which an override takes.
std::string stages_text(const Recipe& recipe);

/// A recipe with other stages, checked by the rules of recipes; sources are as written. Throws Error (usage).
Recipe parse_with_stages(const Recipe& recipe, const std::string& stages);

/// The same, resolved: all token files of its training data must exist. Throws Error (usage, data).
Recipe with_stages(const Recipe& recipe, const std::string& stages);

}  // namespace ltrain
