// What eight bits need of a model and of the device that it trains on.
#pragma once
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Of a resolved recipe: patterns of fp8.keep match something, some layer is left, and its device has the
/// products. Throws Error (usage).
void check_fp8(const Recipe& recipe);

}  // namespace ltrain
