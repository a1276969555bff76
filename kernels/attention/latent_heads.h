// Heads of multi-head latent attention (arXiv:2405.04434) for the attention of heads of one width: a head's
// query and key are `nope` channels and then `rope` that rotate, which the keys of all heads share; a value
// has `value` channels, and zeros behind them up to the width of a query.
#pragma once
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct LatentHeads {
  int64_t heads = 1, nope = 1, rope = 2, value = 1;
  LT_HD int64_t width() const { return nope + rope; }
};

/// qkv: (T, 3 * heads * width) = rows of query heads, key heads, value heads, none rotated. q: (T, heads *
/// width). kv: (T, heads * (nope + value)), of each head its key without the shared part, then its value.
/// key_rope: (T, rope). value is at most width.
void latent_heads_forward(Stream& s, Tensor qkv, Tensor q, Tensor kv, Tensor key_rope,
                          const LatentHeads& heads);
/// Gradients from that of qkv, which is no longer rotated: dkey_rope is a sum over heads.
void latent_heads_backward(Stream& s, Tensor dq, Tensor dkv, Tensor dkey_rope, Tensor dqkv,
                           const LatentHeads& heads);
/// y: (T, heads * b) = of each head of x, (T, heads * a), the first b channels; zeros beyond a.
void resize_heads(Stream& s, Tensor y, Tensor x, int64_t heads);

LT_KERNEL(latent_heads_forward, DType t, void* qkv, const void* q, const void* kv, const void* key_rope,
          int64_t rows, LatentHeads heads)
LT_KERNEL(latent_heads_backward, DType t, void* dq, void* dkv, void* dkey_rope, const void* dqkv,
          int64_t rows, LatentHeads heads)
LT_KERNEL(resize_heads, DType t, void* y, const void* x, int64_t heads, int64_t to, int64_t from)

}  // namespace ltrain
