// Quantized matrices of a recipe.
#pragma once
#include <map>
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Quantized matrices by name, with their full shapes. Throws Error (usage) if none is quantized, or if a
/// pattern stands for none.
std::map<std::string, Shape> quantized_matrices(const Recipe& recipe);

}  // namespace ltrain
