// Multiply-add of kernels whose bits are equal on every device.
#pragma once
#include <cmath>

#include "kernels/tensor/host_device.h"

namespace ltrain {

/// a * b + c, rounded once. An update is written with it, so that no compiler chooses which of two products
/// it fuses with their sum: the CPU and the GPU compute the same bits.
template <class A>
LT_HD inline A fused(A a, A b, A c) {
  return std::fma(a, b, c);
}

}  // namespace ltrain
