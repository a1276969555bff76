// The first half of LAMB's update, which 1-bit LAMB has in its warm-up.
#pragma once
#include "parallel/optim/tensor_sums.h"

namespace ltrain {

/// Directions in the place of gradients, and the squares of tensors and of directions in the context's sums.
void lamb_directions(UpdateContext& c, UpdateRule rule);

}  // namespace ltrain
