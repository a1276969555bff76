// Schema rows of MoE models: model.moe.
#pragma once
#include <vector>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

void add_moe_keys(std::vector<Key>& table);
/// Adds the train.* keys of MoE models.
void add_moe_training_keys(std::vector<Key>& table);

}  // namespace ltrain::recipe
