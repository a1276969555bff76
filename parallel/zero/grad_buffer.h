// Destination of a gradient in backward, and if it is added to the old contents.
#pragma once
#include "kernels/tensor/tensor.h"

namespace ltrain {

struct GradBuffer {
  Tensor tensor;
  bool accumulate = false;
};

}  // namespace ltrain
