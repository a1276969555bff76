// Conversion of a model to a Hugging Face config.json, the inverse of runtime/recipe/hf_config.cpp.
#pragma once
#include <string>

#include "kernels/tensor/dtype.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Text of a config.json for the recipe's model with weights of type `dtype`. `base`: a config.json from
/// which keys that do not change the computation (token ids and the like) are copied; empty: none.
std::string hf_config_text(const Recipe& recipe, DType dtype, const std::string& base);
/// Throws Error (usage) if the config.json at `path` does not read back as the recipe's model, because its
/// family lacks a key.
void check_hf_config(const std::string& path, const Recipe& recipe);

}  // namespace ltrain
