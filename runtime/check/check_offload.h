// Whether this machine has room for what a run offloads: asked before anything is started.
#pragma once
#include "runtime/plan/plan.h"

namespace ltrain {

/// `ranks`: of this host. Error (usage) where the recipe's place cannot be used, Error (storage) where it is
/// full.
void check_offload(const Recipe& recipe, const Plan& plan, int ranks);

}  // namespace ltrain
