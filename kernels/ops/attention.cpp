#include "kernels/ops/attention.h"

#include "kernels/core/placement_rules.h"

namespace ltrain {
namespace {

void check(const AttentionShape& a, const Tensor& qkv, const Tensor& out, const Tensor& lse) {
  LT_CHECK(a.heads % a.kv_heads == 0 && qkv.rows() == a.batch * a.seq && qkv.cols() == a.qkv_width() &&
               out.rows() == qkv.rows() && out.cols() == a.heads * a.head_dim &&
               lse.elements() == a.batch * a.heads * a.seq,
           "attention of {} ({} heads, {} key-value heads of {}) into {}", to_string(qkv.shape), a.heads,
           a.kv_heads, a.head_dim, to_string(out.shape));
}

/// Multiply-adds of one causal product over all heads, as operations: half of the square.
double product_flops(const AttentionShape& a) {
  return 2.0 * a.batch * a.heads * a.head_dim * (0.5 * a.seq * (a.seq + 1.0));
}

}  // namespace

void attention_forward(Stream& s, Tensor out, Tensor lse, Tensor qkv, const AttentionShape& shape,
                       const Dropout& drop) {
  check(shape, qkv, out, lse);
  if (s.meta()) {
    OpCost cost =
        op_cost("attention_forward", OpClass::attention, 2 * product_flops(shape), {out, lse}, {qkv});
    cost.n = shape.seq, cost.k = shape.head_dim, cost.m = shape.batch * shape.heads;
    s.meta()->add(s, cost);
    place(s, "attention_forward", Rule::elementwise, {out, lse}, {qkv});
    return;
  }
  s.launch([=] {
    LT_CPU(attention_forward_cpu)(qkv.dtype, out.data, lse.data, qkv.data, shape, dropout_args(drop));
  });
}

void attention_backward(Stream& s, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                        const AttentionShape& shape, const Dropout& drop) {
  check(shape, qkv, out, lse);
  LT_CHECK(dqkv.shape == qkv.shape && dout.shape == out.shape, "attention backward {} into {}",
           to_string(dout.shape), to_string(dqkv.shape));
  if (s.meta()) {
    OpCost cost = op_cost("attention_backward", OpClass::attention, 5 * product_flops(shape), {dqkv},
                          {dout, qkv, out, lse});
    cost.n = shape.seq, cost.k = shape.head_dim, cost.m = shape.batch * shape.heads;
    s.meta()->add(s, cost);
    place(s, "attention_backward", Rule::elementwise, {dqkv}, {dout, qkv, out, lse});
    return;
  }
  s.launch([=] {
    LT_CPU(attention_backward_cpu)
    (qkv.dtype, dqkv.data, dout.data, qkv.data, out.data, lse.data, shape, dropout_args(drop));
  });
}

int64_t attention_scratch_bytes(const AttentionShape& a, DType dtype) {
  const int64_t element = dtype == DType::f64 ? 8 : 4, padded = (a.seq + 63) / 64 * 64;
  return element * (padded * a.head_dim * 7 + 2 * 64 * a.head_dim + 2 * 64 * 64 + 2 * padded);
}

}  // namespace ltrain
