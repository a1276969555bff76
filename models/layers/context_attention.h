// Attention over a sequence that is cut over the ranks of the context axis
// (parallel/mesh/context_sharding.h).
#pragma once
#include "kernels/attention/attention.h"
#include "models/layers/step.h"

namespace ltrain {

/// What attention keeps for its backward. With an exchange of sequence for heads, qkv and lse are of all rows
/// that were exchanged and of this rank's share of the heads, and so is exchanged_out, which is out before
/// the exchange back.
struct AttentionSaved {
  Tensor qkv, out, lse, exchanged_out;
};

/// Learned logits of the heads of `shape`, where the family has them, and in backward their gradient.
struct AttentionSinks {
  Tensor value, gradient;
  bool accumulate = false;
};

/// saved.qkv: (batch * rows, qkv_width) of this rank's rows in the step's dtype, q and k rotated; replaced
/// when it is exchanged. saved.out (batch * rows, heads * head_dim) and the rest are allocated and filled.
/// `shape`: of this rank's heads before an exchange; its seq is the whole sequence's.
void context_attention_forward(Step& step, const MicroBatch& mb, const AttentionShape& shape,
                               const Dropout& drop, Tensor sinks, AttentionSaved& saved);

/// dqkv: (batch * rows, qkv_width), all of it written. dout: as saved.out.
void context_attention_backward(Step& step, const MicroBatch& mb, const AttentionShape& shape,
                                const Dropout& drop, const AttentionSinks& sinks, Tensor dqkv, Tensor dout,
                                const AttentionSaved& saved);

}  // namespace ltrain
