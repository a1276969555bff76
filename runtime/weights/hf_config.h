// A model as a config.json of Hugging Face: the other direction of runtime/recipe/hf_config.cpp.
#pragma once
#include <string>

#include "kernels/tensor/dtype.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// The text of a config.json of the recipe's model whose weights are `dtype`. `base`: a config.json whose
/// keys that do not change the function (ids of tokens and the like) are taken over; empty: none.
std::string hf_config_text(const Recipe& recipe, DType dtype, const std::string& base);
/// Error (usage) when the config.json at `path` does not read back as the recipe's model: its family has no
/// key for something of it.
void check_hf_config(const std::string& path, const Recipe& recipe);

}  // namespace ltrain
