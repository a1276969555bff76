// Where a backward writes a gradient, and whether it adds to what is there.
#pragma once
#include "kernels/tensor/tensor.h"

namespace ltrain {

struct GradBuffer {
  Tensor tensor;
  bool accumulate = false;
};

}  // namespace ltrain
