// Balance without a loss (DeepSeek-V3, arXiv:2408.15664): a bias on the scores used for the choice of
// experts.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Share of all choices that each real expert is to get, where others are zero experts, with biases that stay
/// (LongCat-Flash, arXiv:2509.01322, equation 2). 0: an even share of all experts.
struct BiasTarget {
  int64_t real_experts = 0;
  double share = 0;
};

/// For each row: bias_i += rate * sign(mean - n_i), where n is the first E numbers of the row of `chosen`,
/// the choices of each expert in a step over all ranks. bias: (layers, E) f32 or f64; chosen: (layers, at
/// least E) f64. A row without choices is unchanged. With a share: bias_i += rate (share - n_i / sum of n),
/// of real experts.
void move_router_bias(Stream& s, Tensor bias, Tensor chosen, double rate, const BiasTarget& target = {});

LT_KERNEL(move_router_bias, DType t, void* bias, const double* chosen, int64_t layers, int64_t experts,
          int64_t stride, double rate, BiasTarget target)

}  // namespace ltrain
