// Attention sinks: each head has a learned logit that joins the softmax's denominator and has no value
// (arXiv:2309.17453; gpt-oss's config attention_sinks).
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Turns the result of attention without sinks, by any kernel, into the result with sinks: out *= sigmoid(lse
/// - sink); lse += softplus(sink - lse). A backward of attention given both new tensors is the backward with
/// sinks. out: (batch * rows, heads * head_dim); lse: (batch, heads, rows) f32 (f64 for f64); sinks: dtype of
/// out, at least first_head + heads elements, read from element `first_head` on.
void attention_sinks_forward(Stream& s, Tensor out, Tensor lse, Tensor sinks, int64_t first_head);
/// dsinks (+)= -exp(sink - lse) * sum over a head's columns of dout * out, summed over rows. Other heads get
/// 0, or are unchanged with `accumulate`. out, lse: with sinks. dsinks: shape of sinks, f32 (f64 for f64).
void attention_sinks_backward(Stream& s, Tensor dsinks, Tensor dout, Tensor out, Tensor lse, Tensor sinks,
                              int64_t first_head, bool accumulate);

/// Shape of the kernels' matrices, with `rows` rows for each sample.
struct SinkShape {
  int64_t batch = 1, heads = 1, rows = 1, head_dim = 1;
  bool accumulate = false;
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("batch", batch), f("heads", heads), f("rows", rows), f("head_dim", head_dim);
  }
};
LT_KERNEL(attention_sinks_forward, DType t, void* out, void* lse, const void* sinks, SinkShape shape)
LT_KERNEL(attention_sinks_backward, DType t, void* dsinks, const void* dout, const void* out, const void* lse,
          const void* sinks, SinkShape shape)

}  // namespace ltrain
