// Arguments of an Adam or AdamW update, separate from the kernels for code that passes them on.
#pragma once
#include <cstdint>

namespace ltrain {

struct AdamwArgs {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< factor of the gradient: clipping
  int64_t step = 1;       ///< from 1, for the bias corrections
  bool coupled = false;   ///< Adam: the decay is added to the gradient
};

}  // namespace ltrain
