// Patterns of sparse matrices.
#pragma once
#include <cstdint>

#include "kernels/tensor/kernel.h"

namespace ltrain {

/// `kept` of each `group` neighbours of a row are kept. With `cols` > 0, the length of a row, two of each row
/// and two of each column of all blocks of 4 x 4: the matrix and its transpose are 2:4 sparse.
struct SparsePattern {
  static constexpr int kLargestGroup = 16;

  int kept = 2, group = 4;
  int64_t cols = 0;

  /// Elements that are chosen from together.
  LT_HD int together() const { return cols > 0 ? 16 : group; }
  /// Elements of which a range has multiples: a group, or four rows.
  LT_HD int64_t unit() const { return cols > 0 ? 4 * cols : group; }
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("kept", kept), f("group", group), f("cols", cols);
  }
  /// Index of element j of group g.
  LT_HD int64_t at(int64_t g, int j) const {
    if (cols == 0) return g * group + j;
    const int64_t across = cols / 4;
    return (4 * (g / across) + j / 4) * cols + 4 * (g % across) + j % 4;
  }
};

}  // namespace ltrain
