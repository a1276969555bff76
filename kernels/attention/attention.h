// Scaled dot-product attention that never stores the score matrix (FlashAttention-2, arXiv:2307.08691): tiles
// of keys with a running maximum forward, recomputed probabilities backward. Queries and keys may be
// different parts of one sequence: tiles that are wholly masked are skipped.
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
  int64_t first_head = 0;  ///< of this rank's heads among all, which dropout is keyed by
  int64_t all_heads = 0;   ///< 0: heads
  int64_t window = 0;   ///< keys that a query sees, its own among them (arXiv:2310.06825); 0: all before it
  double scale = 0;     ///< of the scores; 0: 1 / sqrt(head_dim)
  double soft_cap = 0;  ///< scores become soft_cap * tanh(score / soft_cap) (arXiv:2408.00118); 0: they stay
  int64_t value_dim = 0;  ///< channels of a value, and of what a head gives; 0: head_dim, at most that
  int64_t values() const { return value_dim ? value_dim : head_dim; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t k_width() const { return kv_heads * head_dim; }
  int64_t v_width() const { return kv_heads * values(); }
  int64_t qkv_width() const { return q_width() + k_width() + v_width(); }
  int64_t out_width() const { return heads * values(); }
};

/// Causal. qkv: (batch * seq, qkv_width) rows of q heads, k heads, v heads; out: (batch * seq, out_width);
/// lse: (batch, heads, seq) f32 (f64 for f64), log of the sum of exponentials, saved for backward.
/// `drop` applies to the probabilities, keyed by (sample, head, query, key).
/// `documents`: (batch, seq) i32 or undefined: the position at which the document of each position begins,
/// not descending along a row; a query sees keys from there on only.
void attention_forward(Stream& s, Tensor out, Tensor lse, Tensor qkv, const AttentionShape& shape,
                       const Dropout& drop, Tensor documents = {});

/// What cuDNN's backward works in.
struct CudnnWorkspace {
  Tensor memory;  ///< cudnn_backward_workspace(shape, deterministic) bytes
  /// False: its sums over keys are in no order, so that two runs differ in their last bits.
  bool deterministic = false;
};

/// dqkv: as qkv, all of it written. Nothing aliases. `workspace` lets cuDNN take the call; undefined: the
/// kernels here, which are deterministic.
void attention_backward(Stream& s, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                        const AttentionShape& shape, const Dropout& drop, Tensor documents = {},
                        const CudnnWorkspace& workspace = {});
/// Names in plans of the backward that cuDNN may take.
inline constexpr std::string_view kBackwardByCudnn = "attention_backward_cudnn",
                                  kDeterministicBackwardByCudnn = "attention_backward_cudnn_deterministic";

/// Columns `first` and on of the rows of a matrix (batch * rows, width).
struct HeadRows {
  Tensor t;
  int64_t first = 0;
};

/// Some queries of each sample against some keys of it.
struct AttentionBlock {
  AttentionShape shape;  ///< seq: of the whole sequence
  HeadRows q, k, v;      ///< one dtype; rows of q_width, k_width, v_width
  Positions q_at, k_at;  ///< of their rows
  Tensor documents;      ///< (batch, seq) by global position, optional
  Dropout drop;
};

/// Causal by global position. out: (batch * q rows, out_width) of q's dtype or f32 (f64 for f64); lse:
/// (batch, heads, q rows). A query that sees no key of the block gets out = 0 and lse = -infinity.
void attention_block_forward(Stream& s, Tensor out, Tensor lse, const AttentionBlock& block);

/// What the block adds to the gradients, given the *final* out and lse over all blocks of the queries
/// (arXiv:2310.01889). dout, out: q's dtype. dq, dk, dv: q's dtype or f32 (f64 for f64); with `add` they are
/// added to, otherwise written; dk and dv alike.
struct AttentionBlockGrads {
  HeadRows dq, dk, dv;
  bool add_q = false, add_kv = false;
};
void attention_block_backward(Stream& s, const AttentionBlockGrads& grads, Tensor dout, Tensor out,
                              Tensor lse, const AttentionBlock& block);

/// Scores of a sample's head that a causal mask, of a window or of all keys (0), leaves of these queries and
/// keys.
double visible_pairs(const Positions& queries, const Positions& keys, int64_t window = 0);

/// Scratch that one thread of the CPU kernels holds for these, bytes.
int64_t attention_scratch_bytes(const AttentionShape& shape, DType dtype);
int64_t attention_scratch_bytes(const Positions& queries, const Positions& keys, int64_t head_dim,
                                DType dtype);

/// A block for the kernels.
struct AttentionArgs {
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 64, value_dim = 64, all_heads = 1,
          first_head = 0;
  int64_t window = 0;
  double scale = 0, soft_cap = 0;                       ///< AttentionShape's
  const void *q = nullptr, *k = nullptr, *v = nullptr;  ///< at the first row's first head
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;     ///< elements from row to row
  Positions q_at, k_at;
  const int32_t* documents = nullptr;
  DropoutArgs drop;
  void* workspace = nullptr;  ///< of cuDNN's backward
  int64_t workspace_bytes = 0;
  bool deterministic = false;  ///< of cuDNN's backward: CudnnWorkspace's
  template <class F>
  void sizes(F&& f) const {  // for messages
    f("batch", batch), f("seq", seq), f("heads", heads), f("kv_heads", kv_heads), f("head_dim", head_dim);
    f("value_dim", value_dim), f("window", window);
  }
};
/// A gradient for the kernels. `wide`: f32 (f64 for f64) rather than the dtype of the op.
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
