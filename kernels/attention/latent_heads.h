// Heads of multi-head latent attention (arXiv:2405.04434). A head's query and key are `nope` channels and
// then `rope` rotary channels; all heads share the rotary channels of the key. A value has `value` channels.
#pragma once
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct LatentHeads {
  int64_t heads = 1, nope = 1, rope = 2, value = 1;
  LT_HD int64_t width() const { return nope + rope; }
  LT_HD int64_t qkv_width() const { return heads * (2 * width() + value); }
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("heads", heads), f("nope", nope), f("rope", rope), f("value", value);
  }
};

/// qkv: (T, qkv_width) = rows of query heads, key heads, value heads, not rotated. q: (T, heads * width). kv:
/// (T, heads * (nope + value)), for each head the key without its shared channels, then the value. key_rope:
/// (T, rope).
void latent_heads_forward(Stream& s, Tensor qkv, Tensor q, Tensor kv, Tensor key_rope,
                          const LatentHeads& heads);
/// Gradients of the inputs from dqkv, which is already rotated back. dkey_rope is a sum over heads.
void latent_heads_backward(Stream& s, Tensor dq, Tensor dkv, Tensor dkey_rope, Tensor dqkv,
                           const LatentHeads& heads);

LT_KERNEL(latent_heads_forward, DType t, void* qkv, const void* q, const void* kv, const void* key_rope,
          int64_t rows, LatentHeads heads)
LT_KERNEL(latent_heads_backward, DType t, void* dq, void* dkv, void* dkey_rope, const void* dqkv,
          int64_t rows, LatentHeads heads)

}  // namespace ltrain
