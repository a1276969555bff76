// Factors of one row of DoRA, for host and device.
#pragma once
#include <cmath>

#include "kernels/tensor/host_device.h"

namespace ltrain {

/// factors: {magnitude / norm, 1 / magnitude}; squares: {of W's row, of the row of W + V}.
template <class A>
LT_HD inline void write_magnitude_factors(A* factors, const A* squares, A change) {
  const A magnitude = std::sqrt(squares[0]) + change;
  factors[0] = squares[1] > 0 ? magnitude / std::sqrt(squares[1]) : A(0);
  factors[1] = magnitude != 0 ? 1 / magnitude : A(0);
}

}  // namespace ltrain
