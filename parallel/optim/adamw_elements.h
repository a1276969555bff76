// The update of AdamW's kernel, which several optimizers share.
#pragma once
#include "parallel/optim/optimizer.h"

namespace ltrain {

/// `coupled`: Adam's weight decay, part of the gradient.
void update_adamw(Stream& s, const std::vector<ElementPart>& parts, bool coupled = false);

}  // namespace ltrain
