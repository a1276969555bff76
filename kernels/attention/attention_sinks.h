// Attention sinks: a learned logit a head that joins the softmax's denominator and has no value
// (arXiv:2309.17453; gpt-oss's config attention_sinks).
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Turns the result of attention without sinks into that with them, whatever kernel made it:
/// out *= sigmoid(lse - sink);  lse += softplus(sink - lse). A backward of attention that is given both is
/// that of the softmax with sinks. out: (batch * rows, heads * head_dim); lse: (batch, heads, rows) f32, f64
/// for f64; sinks: at least first_head + heads, dtype of out: those of these heads begin with `first_head`.
void attention_sinks_forward(Stream& s, Tensor out, Tensor lse, Tensor sinks, int64_t first_head);
/// dsinks (+)= -exp(sink - lse) * sum over a head's columns of dout * out, summed over rows; 0 for other
/// heads (left alone with `accumulate`). out, lse: with sinks. dsinks: as sinks, f32 (f64 for f64).
void attention_sinks_backward(Stream& s, Tensor dsinks, Tensor dout, Tensor out, Tensor lse, Tensor sinks,
                              int64_t first_head, bool accumulate);

/// Of a matrix of `rows` rows a sample.
struct SinkShape {
  int64_t batch = 1, heads = 1, rows = 1, head_dim = 1;
  bool accumulate = false;
  template <class F>
  void sizes(F&& f) const {  // for messages
    f("batch", batch), f("heads", heads), f("rows", rows), f("head_dim", head_dim);
  }
};
LT_KERNEL(attention_sinks_forward, DType t, void* out, void* lse, const void* sinks, SinkShape shape)
LT_KERNEL(attention_sinks_backward, DType t, void* dsinks, const void* dout, const void* out, const void* lse,
          const void* sinks, SinkShape shape)

}  // namespace ltrain
