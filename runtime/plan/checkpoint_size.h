// Size of a checkpoint, before one is written.
#pragma once
#include <cstdint>

#include "runtime/machines/machine_profile.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Bytes of all tensors in one checkpoint of the job: weights, optimizer states, averages of weights,
/// rounding errors of compressed sums. `resolved` may have any number of ranks. Builds the model of one rank
/// on the meta device, and allocates nothing of that size.
int64_t checkpoint_bytes(const Recipe& resolved, const MachineProfile& profile);

}  // namespace ltrain
