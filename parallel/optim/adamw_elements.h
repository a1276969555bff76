// AdamW's update, shared by several optimizers.
#pragma once
#include "parallel/optim/optimizer.h"

namespace ltrain {

/// `coupled`: Adam's weight decay, added to the gradient.
void update_adamw(Stream& s, const std::vector<ElementPart>& parts, bool coupled = false);

}  // namespace ltrain
