// Rotary position embedding (arXiv:2104.09864), Hugging Face's half-split layout: pairs are channels i and i
// + r/2 of the first r channels of a head; the others do not rotate.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_map.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Rotates the first `heads` heads of each row of qkv (rows, row_width) in place by the angles of its
/// position (`map`) in table (positions, r/2, 2) f32: cos, sin. `inverse` rotates back, which is the
/// backward.
void rope(Stream& s, Tensor qkv, Tensor table, const RowMap& map, int64_t heads, int64_t head_dim,
          bool inverse);

LT_KERNEL(rope, DType t, void* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map,
          int64_t heads, int64_t head_dim, int64_t rotary_dim, bool inverse)

}  // namespace ltrain
