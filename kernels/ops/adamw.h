// AdamW (arXiv:1711.05101), fused: gradient scaling, moments, decay, update, and the low-precision copy in
// one pass.
#pragma once
#include "kernels/core/kernel.h"
#include "kernels/core/stream.h"

namespace ltrain {

struct AdamwArgs {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< multiplies the gradient: the clipping factor
  int64_t step = 1;       ///< from 1, for the bias corrections
};

/// master -= lr * (weight_decay * master + mhat / (sqrt(vhat) + eps)) over n elements, PyTorch's order of
/// operations. master, exp_avg, exp_avg_sq, grad: (n) f32 (all f64 for f64). low: (n) bf16 copy of master, or
/// undefined. `decay` false leaves the weight decay out (norms, biases).
void adamw(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, Tensor low, bool decay,
           const AdamwArgs& args);

LT_KERNEL(adamw, DType t, void* master, void* exp_avg, void* exp_avg_sq, const void* grad, void* low,
          int64_t n, bool decay, AdamwArgs args)

}  // namespace ltrain
