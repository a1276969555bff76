#include "kernels/norm/clip_qkv.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// Cost of an op over n elements that reads `reads` tensors of them and writes at most one.
OpCost cost_of(const char* name, Tensor t, int64_t n, int reads) {
  OpCost cost = op_cost(name, OpClass::elementwise, 2.0 * static_cast<double>(n), {}, {});
  cost.dtype = t.dtype;
  cost.bytes = static_cast<double>((reads + 1) * n * dtype_size(t.dtype));
  return cost;
}

}  // namespace

void clip_qkv_forward(Stream& s, Tensor y, double limit) {
  LT_CHECK(limit > 0, "clip_qkv: expected a limit above 0, got {}", limit);
  if (s.meta()) {
    s.meta()->add(s, cost_of("clip_qkv_forward", y, y.elements(), 1));
    place(s, "clip_qkv_forward", Rule::elementwise, {y}, {y});
    return;
  }
  LT_LAUNCH(s, clip_qkv_forward, y.dtype, y.data, y.elements(), limit);
}

void clip_heads_backward(Stream& s, Tensor dy, Tensor x, Tensor rstd, Tensor weight, const HeadNorm& p,
                         double limit) {
  const int64_t all = p.heads * p.width;
  LT_CHECK(p.first + all <= dy.cols() && x.cols() == all && rstd.cols() == p.heads &&
               weight.elements() == p.width && x.rows() == dy.rows(),
           "clip_qkv backward: expected {} heads of {} columns from column {} on within dy, x of {} columns, "
           "rstd of {} and a weight of {} elements; got dy {}, x {}, rstd {}, weight {}",
           p.heads, p.width, p.first, all, p.heads, p.width, to_string(dy.shape), to_string(x.shape),
           to_string(rstd.shape), to_string(weight.shape));
  if (s.meta()) {
    s.meta()->add(s, cost_of("clip_heads_backward", dy, x.elements(), 1));
    place(s, "clip_heads_backward", Rule::elementwise, {dy}, {dy, x});
    return;
  }
  LT_LAUNCH(s, clip_heads_backward, dy.dtype, dy.data, x.data, rstd.data, weight.data, dy.rows(), dy.cols(),
            p, limit);
}

void clip_values_backward(Stream& s, Tensor dy, Tensor y, int64_t first, double limit) {
  LT_CHECK(dy.shape == y.shape && first >= 0 && first <= dy.cols(),
           "clip_qkv backward: expected y of shape {} and a first column within it, got {} and {}",
           to_string(dy.shape), to_string(y.shape), first);
  if (s.meta()) {
    s.meta()->add(s, cost_of("clip_values_backward", dy, dy.rows() * (dy.cols() - first), 1));
    place(s, "clip_values_backward", Rule::elementwise, {dy}, {dy, y});
    return;
  }
  LT_LAUNCH(s, clip_values_backward, dy.dtype, dy.data, y.data, dy.rows(), dy.cols(), first, limit);
}

}  // namespace ltrain
