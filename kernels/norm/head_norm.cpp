#include "kernels/norm/head_norm.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void head_norm_forward(Stream& s, Tensor y, Tensor x, Tensor rstd, Tensor weight, const HeadNorm& p) {
  const int64_t all = p.heads * p.width;
  LT_CHECK(p.first + all <= y.cols() && weight.elements() == p.width &&
               (!x.defined() || (x.cols() == all && rstd.cols() == p.heads)),
           "head norm: expected {} heads of {} columns from column {} on within y, a weight of {} elements, "
           "and x and rstd of {} and {} columns or undefined; got y {}, weight {}",
           p.heads, p.width, p.first, p.width, all, p.heads, to_string(y.shape), to_string(weight.shape));
  if (s.meta()) {
    OpCost cost = op_cost("head_norm_forward", OpClass::elementwise, 4.0 * y.rows() * all, {}, {});
    cost.dtype = y.dtype;
    cost.bytes = static_cast<double>((x.defined() ? 3 : 2) * y.rows() * all * dtype_size(y.dtype));
    s.meta()->add(s, cost);
    if (x.defined())
      for (const Tensor& t : {x, rstd}) place(s, "head_norm_forward", Rule::elementwise, {t}, {y});
    place(s, "head_norm_forward", Rule::elementwise, {y}, {y, weight});
    return;
  }
  LT_LAUNCH(s, head_norm_forward, y.dtype, y.data, x.data, rstd.data, weight.data, y.rows(), y.cols(), p);
}

void head_norm_backward(Stream& s, Tensor dy, Tensor dweight, Tensor x, Tensor rstd, Tensor weight,
                        const HeadNorm& p, bool accumulate) {
  LT_CHECK(p.first + p.heads * p.width <= dy.cols() && x.cols() == p.heads * p.width &&
               dweight.elements() == p.width,
           "head norm backward: expected {} heads of {} columns from column {} on within dy, x of {} columns "
           "and dweight of {} elements; got dy {}, x {}, dweight {}",
           p.heads, p.width, p.first, p.heads * p.width, p.width, to_string(dy.shape), to_string(x.shape),
           to_string(dweight.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("head_norm_backward", OpClass::elementwise, 10.0 * x.elements(), {x}, {x, x}));
    place_operand_gradient(s, "head_norm_backward", dweight, weight, {dy, x}, accumulate);
    place(s, "head_norm_backward", Rule::elementwise, {dy}, {dy, x, rstd, weight});
    return;
  }
  LT_LAUNCH(s, head_norm_backward, dy.dtype, dy.data, dweight.data, x.data, rstd.data, weight.data, dy.rows(),
            dy.cols(), p, accumulate);
}

}  // namespace ltrain
