// First half of LAMB's update, also used by 1-bit LAMB's warm-up.
#pragma once
#include "parallel/optim/tensor_sums.h"

namespace ltrain {

/// Replaces gradients by directions, and adds the squares of tensors and directions to the context's sums.
void lamb_directions(UpdateContext& c, UpdateRule rule);

}  // namespace ltrain
