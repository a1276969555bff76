#include "kernels/attention/attention_sinks.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

SinkShape shape_of(const Tensor& out, const Tensor& lse, const Tensor& sinks, int64_t first_head) {
  LT_CHECK(lse.shape.rank == 3 && out.rows() == lse.shape[0] * lse.shape[2] &&
               out.cols() % lse.shape[1] == 0 && sinks.dtype == out.dtype && first_head >= 0 &&
               first_head + lse.shape[1] <= sinks.elements(),
           "attention sinks: expected lse (batch, heads, rows), out (batch * rows, heads * head_dim) and "
           "sinks of the dtype of out for heads from {} on; got lse {}, out {} {}, sinks {} {}",
           first_head, to_string(lse.shape), dtype_name(out.dtype), to_string(out.shape),
           dtype_name(sinks.dtype), to_string(sinks.shape));
  return {lse.shape[0], lse.shape[1], lse.shape[2], out.cols() / lse.shape[1], false};
}

}  // namespace

void attention_sinks_forward(Stream& s, Tensor out, Tensor lse, Tensor sinks, int64_t first_head) {
  const SinkShape shape = shape_of(out, lse, sinks, first_head);
  if (s.meta()) {
    s.meta()->add(s, op_cost("attention_sinks_forward", OpClass::elementwise, 1.0 * out.elements(),
                             {out, lse}, {out, lse}));
    place(s, "attention_sinks_forward", Rule::elementwise, {out, lse}, {out, lse});
    place_vector_of_columns(s, "attention_sinks_forward", out, sinks, shape.heads < sinks.elements());
    return;
  }
  LT_LAUNCH(s, attention_sinks_forward, out.dtype, out.data, lse.data,
            sinks.flat(first_head, {shape.heads}).data, shape);
}

void attention_sinks_backward(Stream& s, Tensor dsinks, Tensor dout, Tensor out, Tensor lse, Tensor sinks,
                              int64_t first_head, bool accumulate) {
  SinkShape shape = shape_of(out, lse, sinks, first_head);
  LT_CHECK(dsinks.shape == sinks.shape && dout.shape == out.shape && dout.dtype == out.dtype,
           "attention sinks backward: expected dsinks {} and dout {} {}, got dsinks {} and dout {} {}",
           to_string(sinks.shape), dtype_name(out.dtype), to_string(out.shape), to_string(dsinks.shape),
           dtype_name(dout.dtype), to_string(dout.shape));
  const bool part = shape.heads < sinks.elements();
  if (s.meta()) {
    s.meta()->add(s, op_cost("attention_sinks_backward", OpClass::elementwise, 2.0 * out.elements(), {},
                             {dout, out, lse}));
    place_gradient_of_columns(s, "attention_sinks_backward", dsinks, sinks, {dout, out, lse}, part,
                              accumulate);
    return;
  }
  if (part && !accumulate) fill_zero(s, dsinks);
  shape.accumulate = accumulate || part;
  LT_LAUNCH(s, attention_sinks_backward, out.dtype, dsinks.flat(first_head, {shape.heads}).data, dout.data,
            out.data, lse.data, sinks.flat(first_head, {shape.heads}).data, shape);
}

}  // namespace ltrain
