// Scaled dot-product attention that never stores the score matrix (FlashAttention-2, arXiv:2307.08691): the
// forward goes over tiles of keys with a running maximum, the backward recomputes probabilities. Queries and
// keys may be different parts of one sequence. Fully masked tiles are skipped.
#pragma once
#include "kernels/elementwise/dropout.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/positions.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct AttentionShape {
  int64_t batch = 1, seq = 1;
  int64_t heads = 1,
          kv_heads = 1;  ///< heads % kv_heads == 0; head h reads key-value head h / (heads / kv_heads)
  int64_t head_dim = 64;
  int64_t first_head = 0;  ///< index of the first local head among all heads; keys dropout
  int64_t all_heads = 0;   ///< heads over all ranks; 0: heads
  int64_t window = 0;   ///< keys that a query sees, its own included (arXiv:2310.06825); 0: all up to its own
  double scale = 0;     ///< factor of the scores; 0: 1 / sqrt(head_dim)
  double soft_cap = 0;  ///< scores become soft_cap * tanh(score / soft_cap) (arXiv:2408.00118); 0: no cap
  int64_t value_dim = 0;  ///< channels of a value and of a head's output, at most head_dim; 0: head_dim
  int64_t values() const { return value_dim ? value_dim : head_dim; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t k_width() const { return kv_heads * head_dim; }
  int64_t v_width() const { return kv_heads * values(); }
  int64_t qkv_width() const { return q_width() + k_width() + v_width(); }
  int64_t out_width() const { return heads * values(); }
};

/// Causal attention. qkv: (batch * seq, qkv_width), rows of q heads, k heads, v heads; out: (batch * seq,
/// out_width); lse: (batch, heads, seq) f32 (f64 for f64), log of the sum of exponentials, saved for
/// backward. `drop` applies to the probabilities, keyed by (sample, head, query, key). `documents`: (batch,
/// seq) i32 or undefined, the position at which the document of each position begins, not descending along a
/// row. A query sees keys from its document's begin only.
void attention_forward(Stream& s, Tensor out, Tensor lse, Tensor qkv, const AttentionShape& shape,
                       const Dropout& drop, Tensor documents = {});

/// Workspace of cuDNN's backward.
struct CudnnWorkspace {
  Tensor memory;  ///< cudnn_backward_workspace(shape, deterministic) bytes
  /// False: sums over keys have no fixed order, so that two runs differ in their last bits.
  bool deterministic = false;
};

/// dqkv: shape and dtype of qkv, fully overwritten. No aliases. `workspace` lets cuDNN take the call;
/// undefined: the native kernels, which are deterministic.
void attention_backward(Stream& s, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                        const AttentionShape& shape, const Dropout& drop, Tensor documents = {},
                        const CudnnWorkspace& workspace = {});
/// Op names of cuDNN's backward in plans.
inline constexpr std::string_view kBackwardByCudnn = "attention_backward_cudnn",
                                  kDeterministicBackwardByCudnn = "attention_backward_cudnn_deterministic";

/// Columns of the rows of a matrix (batch * rows, width), from column `first` on.
struct HeadRows {
  Tensor t;
  int64_t first = 0;
};

/// A block of queries of each sample and a block of keys of the same sample.
struct AttentionBlock {
  AttentionShape shape;  ///< seq: length of the full sequence
  HeadRows q, k, v;      ///< one dtype; rows of q_width, k_width, v_width
  Positions q_at, k_at;  ///< positions of the rows of q, and of k and v
  Tensor documents;      ///< (batch, seq) by global position, optional
  Dropout drop;
};

/// Causal by global position. out: (batch * q rows, out_width), dtype of q or f32 (f64 for f64); lse: (batch,
/// heads, q rows). A query that sees no key of the block gets out = 0 and lse = -infinity.
void attention_block_forward(Stream& s, Tensor out, Tensor lse, const AttentionBlock& block);

/// Gradients of one block, given the *final* out and lse over all blocks of the queries (arXiv:2310.01889).
/// dout, out: dtype of q. dq, dk, dv: dtype of q or f32 (f64 for f64), dk and dv the same. With `add` the
/// block's part is added, otherwise the tensors are overwritten.
struct AttentionBlockGrads {
  HeadRows dq, dk, dv;
  bool add_q = false, add_kv = false;
};
void attention_block_backward(Stream& s, const AttentionBlockGrads& grads, Tensor dout, Tensor out,
                              Tensor lse, const AttentionBlock& block);

/// Number of scores of one head of one sample that the causal mask leaves for these queries and keys.
/// `window` 0: no window.
double visible_pairs(const Positions& queries, const Positions& keys, int64_t window = 0);

/// Scratch that one thread of the CPU kernels holds, in bytes.
int64_t attention_scratch_bytes(const AttentionShape& shape, DType dtype);
int64_t attention_scratch_bytes(const Positions& queries, const Positions& keys, int64_t head_dim,
                                DType dtype);

/// Arguments of a block for the kernels.
struct AttentionArgs {
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 64, value_dim = 64, all_heads = 1,
          first_head = 0;
  int64_t window = 0;
  double scale = 0, soft_cap = 0;                       ///< AttentionShape values
  const void *q = nullptr, *k = nullptr, *v = nullptr;  ///< at the first head of the first row
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;     ///< elements from row to row
  Positions q_at, k_at;
  const int32_t* documents = nullptr;
  DropoutArgs drop;
  void* workspace = nullptr;  ///< memory of cuDNN's backward
  int64_t workspace_bytes = 0;
  bool deterministic = false;  ///< cuDNN's backward: CudnnWorkspace::deterministic
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("batch", batch), f("seq", seq), f("heads", heads), f("kv_heads", kv_heads), f("head_dim", head_dim);
    f("value_dim", value_dim), f("window", window);
  }
};
/// A gradient for the kernels. `wide`: f32 (f64 for f64) instead of the dtype of the op.
struct AttentionSink {
  void* data = nullptr;
  int64_t stride = 0;
  bool wide = false, add = false;
};
AttentionArgs fused_attention_args(DType t, const void* qkv, const AttentionShape& shape, DropoutArgs drop,
                                   const int32_t* documents = nullptr);

LT_KERNEL(attention_forward, DType t, bool wide_out, void* out, void* lse, AttentionArgs args)
LT_KERNEL(attention_backward, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv, const void* dout,
          const void* out, const void* lse, AttentionArgs args)

}  // namespace ltrain
