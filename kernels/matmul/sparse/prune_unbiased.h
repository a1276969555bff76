// The minimum-variance unbiased estimator (MVUE) of 1:2 sparsity (Chmiel et al., arXiv:2203.10991): one of
// two neighbours stays, at random, with the sum of both magnitudes. Two pairs make a group of 2:4 sparsity.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_random.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// A run of a matrix's columns.
struct ColumnRange {
  int64_t first = 0, count = 0;
};

/// Writes columns `range` of out; others stay as they are. For rows (2i, 2i + 1) of dy with values a and b in
/// a column, a stays with probability |a| / (|a| + |b|) as sign(a) (|a| + |b|), and otherwise b in the same
/// way; the other becomes 0. The mean is dy, but for the rounding of the sum in 16 bits, which fp16 may not
/// hold. The number comes from row 2i, and `random.part` is one of `range`'s columns. A value that is not
/// finite stays itself. out, dy: (rows, C), rows even; out may alias dy.
void prune_unbiased(Stream& s, Tensor out, Tensor dy, const RowRandom& random, ColumnRange range);

LT_KERNEL(prune_unbiased, DType t, void* out, const void* dy, int64_t rows, int64_t cols,
          RowRandomArgs random, ColumnRange range)

}  // namespace ltrain
