// The teacher of distillation: its model and weights from a Hugging Face folder or a checkpoint.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// With distillation.teacher: sets Recipe::distillation.model. Throws Error (usage or storage) if there is no
/// such model, or if it does not fit the recipe's vocabulary, sequences or layout.
void read_teacher(Recipe& resolved);

/// Collective. Fills the parameters of that model. Returns notes.
std::vector<std::string> load_teacher(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                                      Stream& stream);

}  // namespace ltrain
