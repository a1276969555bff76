// Merge of two partial attention results over different keys (ring attention, arXiv:2310.01889).
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// out -= sigmoid(block_lse - lse) * (out - block_out); lse -= logsigmoid(lse - block_lse). The result is
/// attention over the keys of both. out, block_out: (batch * rows, heads * head_dim) f32 or f64; lse,
/// block_lse: (batch, heads, rows), same dtype, -infinity for a row that saw no key. No aliases.
void merge_attention(Stream& s, Tensor out, Tensor lse, Tensor block_out, Tensor block_lse);

LT_KERNEL(merge_attention, DType t, void* out, void* lse, const void* block_out, const void* block_lse,
          int64_t batch, int64_t heads, int64_t rows, int64_t head_dim)

}  // namespace ltrain
