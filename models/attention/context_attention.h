// Attention over a sequence that is sharded over the context axis (parallel/mesh/context_sharding.h).
#pragma once
#include "kernels/attention/attention.h"
#include "models/layers/step.h"

namespace ltrain {

/// Tensors that attention saves for backward. With an exchange of sequence for heads, qkv and lse have all
/// exchanged rows and this rank's share of the heads. So has exchanged_out, which is out before the exchange
/// back.
struct AttentionSaved {
  Tensor qkv, out, lse, exchanged_out;
};

/// Attention sinks of the heads of `shape`, if the family has them, and in backward their gradient.
struct AttentionSinks {
  Tensor value, gradient;
  bool accumulate = false;
};

/// saved.qkv: (batch * rows, qkv_width), this rank's rows in the step's dtype, q and k rotated; replaced by
/// an exchange. Allocates and fills saved.out (batch * rows, heads * head_dim) and the rest. `shape`: this
/// rank's heads before an exchange, with the seq of the full sequence.
void context_attention_forward(Step& step, const MicroBatch& mb, const AttentionShape& shape,
                               const Dropout& drop, Tensor sinks, AttentionSaved& saved);

/// dqkv: (batch * rows, qkv_width), fully overwritten. dout: shape of saved.out. `clip`: limit at which
/// values were clamped, where their gradient is 0 (clip_values_backward); 0: none.
void context_attention_backward(Step& step, const MicroBatch& mb, const AttentionShape& shape,
                                const Dropout& drop, const AttentionSinks& sinks, Tensor dqkv, Tensor dout,
                                const AttentionSaved& saved, double clip = 0);

}  // namespace ltrain
