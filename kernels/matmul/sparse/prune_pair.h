// One pair of prune_unbiased.h, for host and device.
#pragma once
#include <cmath>

#include "kernels/tensor/host_device.h"

namespace ltrain {

/// Replaces a or b by 0 and the other by both magnitudes with its sign. u: uniform in [0, 1). Without
/// branches, for vectors.
template <class A>
LT_HD inline void prune_pair(A& a, A& b, A u) {
  const A magnitude = std::abs(a), sum = magnitude + std::abs(b);
  const bool finite_a = a - a == 0, finite = finite_a & (b - b == 0);
  // A product of tiny numbers rounds up to a: next to a zero it stays anyhow.
  const bool drawn = (b == 0) | (u * sum < magnitude), keeps_a = finite ? drawn : !finite_a;
  const A one = keeps_a ? a : b, kept = finite ? std::copysign(sum, one) : one;
  a = keeps_a ? kept : A(0);
  b = keeps_a ? A(0) : kept;
}

}  // namespace ltrain
