// Check that this machine has room for the offloaded tensors of a run, before anything is started.
#pragma once
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// `ranks`: number of ranks on this host. Throws Error (usage) if the offload target cannot be used, and
/// Error (storage) if it is full.
void check_offload(const Recipe& recipe, const Plan& plan, int ranks);

}  // namespace ltrain
