// Counter-based dropout. The mask is a function of (seed, layer, global sample, position, channel): it is the
// same under every layout, and is not saved.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_random.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Dropout of a (rows, C) tensor. p = 0: off.
struct Dropout : RowRandom {
  double p = 0;
  bool on() const { return p > 0; }
};

/// Dropout with raw pointers, for kernels.
struct DropoutArgs : RowRandomArgs {
  uint32_t threshold = 0;  ///< 0: off
  float scale = 1;
};
DropoutArgs dropout_args(const Dropout& d);

/// y = x with dropped elements zero and the rest scaled by 1 / (1 - p); also its own backward. x, y: (rows,
/// C); y may alias x.
void dropout(Stream& s, Tensor y, Tensor x, const Dropout& d);

LT_KERNEL(dropout, DType t, void* y, const void* x, int64_t rows, int64_t cols, DropoutArgs d)

}  // namespace ltrain
