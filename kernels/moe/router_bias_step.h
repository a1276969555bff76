// Step of one expert's bias, shared by the CPU and CUDA kernels, which are compiled separately.
#pragma once
#include "kernels/tensor/host_device.h"

namespace ltrain {
namespace {

/// n: choices of the experts of a layer.
LT_HD inline double router_bias_step(const double* n, int64_t experts, int64_t i, double rate) {
  double all = 0;
  for (int64_t e = 0; e < experts; ++e) all += n[e];
  const double mine = n[i] * static_cast<double>(experts);  // whole numbers: an even share compares exactly
  return mine < all ? rate : mine > all ? -rate : 0;
}

}  // namespace
}  // namespace ltrain
