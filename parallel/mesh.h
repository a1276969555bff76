// The mesh: ranks laid out over the parallel axes. Pure arithmetic.
#pragma once
#include <array>
#include <vector>

#include "kernels/core/placement.h"

namespace ltrain {

/// Degrees of the axes, data outermost and tensor innermost, so that tensor groups are neighbours. Expert
/// folds over the others and has degree 1 until mixtures of experts use it.
struct Mesh {
  std::array<int, kAxisCount> degree{1, 1, 1, 1, 1};
  int rank = 0;

  int size(Axis a) const { return degree[static_cast<int>(a)]; }
  int world() const;
  /// This rank's position on the axis.
  int coordinate(Axis a) const;
  /// World ranks that differ from this one on these axes alone, in ascending order.
  std::vector<int> group(AxisSet axes) const;
  /// This rank's position in group(axes).
  int place_in(AxisSet axes) const;
  /// The world rank at `coordinate` of `a`, elsewhere at this rank's place.
  int at(Axis a, int coordinate) const;
};

}  // namespace ltrain
