// Rotary position embedding (arXiv:2104.09864) of r channels of each head. The other channels do not rotate.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_map.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Rotated channels: the first `heads` heads of a row, r channels of each from channel `first` on.
struct RopeHeads {
  int64_t heads = 1, head_dim = 2;
  int64_t first = 0;
  /// True: pairs are channels 2 i and 2 i + 1 of the r (DeepSeek). False: i and i + r/2 (Hugging Face's
  /// half-split layout).
  bool interleaved = false;
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("heads", heads), f("head_dim", head_dim);
  }
};

/// Rotates heads of each row of qkv (rows, row_width) in place by the angles of its position (`map`). table:
/// (positions, r/2, 2) f32, cos and sin. `inverse` rotates back, which is the backward.
void rope(Stream& s, Tensor qkv, Tensor table, const RowMap& map, const RopeHeads& heads, bool inverse);

LT_KERNEL(rope, DType t, void* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map,
          RopeHeads heads, int64_t rotary_dim, bool inverse)

}  // namespace ltrain
