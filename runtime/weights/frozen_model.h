// The frozen model beside the one that trains, the teacher of distillation or a resident reference of
// preference training: its shape and weights from a Hugging Face folder or a checkpoint.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// With distillation.teacher or preference.reference_model: sets Distillation::model or Preference::model.
/// Throws Error (usage or storage) if there is no such model, or if it does not fit the recipe's vocabulary,
/// sequences or layout.
void read_frozen_model(Recipe& resolved);

/// Collective. Fills the parameters of that model, or of a resident reference without reference_model with
/// the weights that the run began with. Returns notes.
std::vector<std::string> load_frozen_model(const Recipe& recipe, ParameterStore& parameters,
                                           Communicator& control, Stream& stream);

}  // namespace ltrain
