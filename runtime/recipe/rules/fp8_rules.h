// Requirements of FP8 for the model and the device.
#pragma once
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Checks a resolved recipe: every pattern of fp8.keep matches a layer, some layer remains in FP8, and the
/// device has FP8 matmuls. Throws Error (usage).
void check_fp8(const Recipe& recipe);

}  // namespace ltrain
