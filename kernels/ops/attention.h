// Scaled dot-product attention that never stores the score matrix (FlashAttention-2, arXiv:2307.08691): tiles
// of keys with a running maximum forward, recomputed probabilities backward.
#pragma once
#include "kernels/core/cpu_isa.h"
#include "kernels/core/stream.h"
#include "kernels/ops/dropout.h"

namespace ltrain {

struct AttentionShape {
  int64_t batch = 1, seq = 1;
  int64_t heads = 1,
          kv_heads = 1;  ///< heads % kv_heads == 0; head h reads key-value head h / (heads / kv_heads)
  int64_t head_dim = 64;
  int64_t first_head = 0;  ///< of this rank's heads among all, which dropout is keyed by
  int64_t all_heads = 0;   ///< 0: heads
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// Causal. qkv: (batch * seq, qkv_width) rows of q heads, k heads, v heads; out: (batch * seq, heads *
/// head_dim); lse: (batch, heads, seq) f32 (f64 for f64), log of the sum of exponentials, saved for backward.
/// The scale is 1 / sqrt(head_dim). `drop` applies to the probabilities, keyed by (sample, head, query, key).
void attention_forward(Stream& s, Tensor out, Tensor lse, Tensor qkv, const AttentionShape& shape,
                       const Dropout& drop);

/// dqkv: as qkv, all of it written. Nothing aliases.
void attention_backward(Stream& s, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                        const AttentionShape& shape, const Dropout& drop);

/// Scratch that one thread of the CPU kernels holds for these, bytes.
int64_t attention_scratch_bytes(const AttentionShape& shape, DType dtype);

LT_CPU_KERNEL(void attention_forward_cpu(DType t, void* out, void* lse, const void* qkv, AttentionShape shape,
                                         DropoutArgs drop);
              void attention_backward_cpu(DType t, void* dqkv, const void* dout, const void* qkv,
                                          const void* out, const void* lse, AttentionShape shape,
                                          DropoutArgs drop);)

}  // namespace ltrain
