// Copies of rectangles from one matrix to another: packing and unpacking for collectives.
#pragma once
#include <vector>

#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct CopyRectangle {
  int64_t rows = 0, cols = 0;
  int64_t from_row = 0, from_col = 0;
  int64_t to_row = 0, to_col = 0;
  /// The inverse copy.
  CopyRectangle reversed() const { return {rows, cols, to_row, to_col, from_row, from_col}; }
};

/// out[to_row + r, to_col + c] = in[from_row + r, from_col + c] for every part, converted (f32 -> bf16 rounds
/// to nearest even). out, in: matrices (product of all dims but the last, last dim) of floating dtypes, no
/// overlap. Elements outside all parts are unchanged. Parts do not overlap in `out`.
void copy_rectangles(Stream& s, Tensor out, Tensor in, std::vector<CopyRectangle> parts);

LT_KERNEL(copy_rectangles, DType to, DType from, void* out, const void* in, int64_t out_width,
          int64_t in_width, const CopyRectangle* parts, int64_t count)

}  // namespace ltrain
