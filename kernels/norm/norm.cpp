#include "kernels/norm/norm.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// Op name: random numbers take longer than the rest, so that a profile has separate entries for ops with
/// dropout.
std::string_view forward_name(const NormForward& a) {
  return a.dropout.on() ? "norm_forward_dropout" : "norm_forward";
}

}  // namespace

void place_norm(Stream& s, const char* name, const NormForward& a, Tensor out) {
  Tensor v = a.x;
  if (a.delta.defined()) {
    place(s, "residual add", Rule::linear, {a.sum}, {a.x, a.delta});
    v = a.sum;
  }
  place(s, name, Rule::elementwise, {out, a.rstd}, {v, a.weight});
  if (a.bias.defined()) place(s, name, Rule::elementwise, {out}, {out, a.bias});
  if (a.mean.defined()) place(s, name, Rule::elementwise, {a.mean}, {v});
}

void norm_forward(Stream& s, const NormForward& a) {
  LT_CHECK(a.y.shape == a.x.shape && a.weight.elements() == a.x.cols() && a.rstd.elements() == a.x.rows(),
           "norm: expected y {}, weight of {} elements and {} values of rstd, got y {}, weight {}, rstd {}",
           to_string(a.x.shape), a.x.cols(), a.x.rows(), to_string(a.y.shape), to_string(a.weight.shape),
           to_string(a.rstd.shape));
  LT_CHECK(a.delta.defined() == a.sum.defined(),
           "norm: expected delta and sum together or neither, got only {}",
           a.delta.defined() ? "delta" : "sum");
  if (s.meta()) {
    OpCost cost = op_cost(forward_name(a), OpClass::elementwise, 6.0 * a.x.elements(), {a.y}, {a.x});
    if (a.delta.defined()) cost.bytes += 2.0 * a.delta.bytes();
    s.meta()->add(s, cost);
    place_norm(s, "norm_forward", a, a.y);
    return;
  }
  const OpRange range(s, forward_name(a));
  LT_LAUNCH(s, norm_forward, a.x.dtype,
            {a.kind, a.x.rows(), a.x.cols(), a.eps, false, false, a.weight_offset}, a.y.data, a.sum.data,
            a.mean.data, a.rstd.data, a.x.data, a.delta.data, a.weight.data, a.bias.data,
            dropout_args(a.dropout));
}

void residual_add(Stream& s, Tensor sum, Tensor x, Tensor delta, const Dropout& dropout) {
  LT_CHECK(sum.shape == x.shape && delta.shape == x.shape,
           "residual_add: expected sum and delta {}, got {} and {}", to_string(x.shape), to_string(sum.shape),
           to_string(delta.shape));
  const char* name = dropout.on() ? "residual_add_dropout" : "residual_add";
  if (s.meta()) {
    s.meta()->add(s, op_cost(name, OpClass::elementwise, 1.0 * x.elements(), {sum}, {x, delta}));
    place(s, "residual add", Rule::linear, {sum}, {x, delta});
    return;
  }
  const OpRange range(s, name);
  LT_LAUNCH(s, residual_add, x.dtype, sum.data, x.data, delta.data, x.rows(), x.cols(),
            dropout_args(dropout));
}

void norm_backward(Stream& s, const NormBackward& a) {
  LT_CHECK(a.dy.shape == a.x.shape && a.dx.shape == a.x.shape && a.dweight.elements() == a.x.cols(),
           "norm backward: expected dy and dx {} and dweight of {} elements, got dy {}, dx {}, dweight {}",
           to_string(a.x.shape), a.x.cols(), to_string(a.dy.shape), to_string(a.dx.shape),
           to_string(a.dweight.shape));
  if (s.meta()) {
    OpCost cost = op_cost("norm_backward", OpClass::elementwise, 12.0 * a.x.elements(), {a.dx}, {a.dy, a.x});
    if (!a.first) cost.bytes += static_cast<double>(a.dx.bytes());
    s.meta()->add(s, cost);
    if (a.first) {
      place(s, "norm_backward", Rule::elementwise, {a.dx}, {a.dy, a.x, a.weight});
    } else {
      place(s, "norm_backward", Rule::elementwise, {a.dx}, {a.dx, a.dy, a.x, a.weight});
    }
    place(s, "norm_backward (weight)", Rule::sum_rows, {a.dweight}, {a.dy, a.x}, a.accumulate);
    if (a.dbias.defined()) place(s, "norm_backward (bias)", Rule::sum_rows, {a.dbias}, {a.dy}, a.accumulate);
    return;
  }
  LT_LAUNCH(s, norm_backward, a.x.dtype,
            {a.kind, a.x.rows(), a.x.cols(), 0, a.accumulate, a.first, a.weight_offset}, a.dx.data,
            a.dweight.data, a.dbias.data, a.dy.data, a.x.data, a.weight.data, a.mean.data, a.rstd.data);
}

}  // namespace ltrain
