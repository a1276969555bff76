// What an update of Adam or AdamW is told: apart from the kernels, for whoever passes it on.
#pragma once
#include <cstdint>

namespace ltrain {

struct AdamwArgs {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< multiplies the gradient: the clipping factor
  int64_t step = 1;       ///< from 1, for the bias corrections
  bool coupled = false;   ///< Adam: the decay is part of the gradient
};

}  // namespace ltrain
