// Step of one expert's bias, shared by the CPU and CUDA kernels, which are compiled separately.
#pragma once
#include "kernels/moe/router_bias.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {
namespace {

/// n: choices of the experts of a layer.
LT_HD inline double router_bias_step(const double* n, int64_t experts, int64_t i, double rate,
                                     const BiasTarget& target) {
  double all = 0;
  for (int64_t e = 0; e < experts; ++e) all += n[e];
  if (target.share > 0) return i < target.real_experts && all > 0 ? rate * (target.share - n[i] / all) : 0;
  const double mine = n[i] * static_cast<double>(experts);  // whole numbers: an even share compares exactly
  return mine < all ? rate : mine > all ? -rate : 0;
}

}  // namespace
}  // namespace ltrain
