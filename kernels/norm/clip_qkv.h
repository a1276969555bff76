// Clamps of queries, keys and values before the rotation (OLMoE's clip_qkv). The backward needs no mask of
// its own: what was clamped is seen in the saved values, and in the saved inputs of the norms of queries and
// keys. The limit is rounded to the tensor's type.
#pragma once
#include "kernels/norm/head_norm.h"

namespace ltrain {

/// y = y clamped to [-limit, limit], in place. y: (T, C).
void clip_qkv_forward(Stream& s, Tensor y, double limit);
/// In the part's columns of dy (T, C): 0 where the norm's output was clamped. x, rstd, weight: as in
/// head_norm_backward; the output is computed again, with the bits of the forward.
void clip_heads_backward(Stream& s, Tensor dy, Tensor x, Tensor rstd, Tensor weight, const HeadNorm& part,
                         double limit);
/// In the columns of dy (T, C) from `first` on: 0 where y (T, C), clamped, is at a limit.
void clip_values_backward(Stream& s, Tensor dy, Tensor y, int64_t first, double limit);

LT_KERNEL(clip_qkv_forward, DType t, void* y, int64_t n, double limit)
LT_KERNEL(clip_heads_backward, DType t, void* dy, const void* x, const void* rstd, const void* weight,
          int64_t rows, int64_t cols, HeadNorm part, double limit)
LT_KERNEL(clip_values_backward, DType t, void* dy, const void* y, int64_t rows, int64_t cols, int64_t first,
          double limit)

}  // namespace ltrain
