#include "kernels/norm/norm_cut.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void norm_moments(Stream& s, Tensor moments, Tensor x, NormKind kind) {
  LT_CHECK(moments.elements() == x.rows() * norm_moment_count(kind),
           "norm moments: expected {} moments, got {}", x.rows() * norm_moment_count(kind),
           to_string(moments.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("norm_moments", OpClass::elementwise, 2.0 * x.elements(), {moments}, {x}));
    place(s, "norm_moments", Rule::elementwise, {moments}, {x});
    place_row_statistics(s, moments);
    return;
  }
  LT_LAUNCH(s, norm_moments, x.dtype, {kind, x.rows(), x.cols(), 0, false, false}, moments.data, x.data);
}

void norm_apply(Stream& s, const NormApply& a) {
  const int64_t each = a.x.rows() * norm_moment_count(a.kind);
  LT_CHECK(a.y.shape == a.x.shape && a.weight.elements() == a.x.cols() && a.rstd.elements() == a.x.rows() &&
               a.moments.elements() % each == 0,
           "norm: expected y {}, weight of {} elements, {} values of rstd and moments in multiples of {}; "
           "got y {}, weight {}, rstd {}, moments {}",
           to_string(a.x.shape), a.x.cols(), a.x.rows(), each, to_string(a.y.shape),
           to_string(a.weight.shape), to_string(a.rstd.shape), to_string(a.moments.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("norm_apply", OpClass::elementwise, 4.0 * a.x.elements(), {a.y}, {a.x}));
    place(s, "norm_apply", Rule::elementwise, {a.y}, {a.x, a.moments});
    place(s, "norm_apply", Rule::elementwise, {a.rstd}, {a.moments});
    if (a.mean.defined()) place(s, "norm_apply", Rule::elementwise, {a.mean}, {a.moments});
    place_add_vector(s, "norm_apply", a.y, a.weight);
    if (a.bias.defined()) place_add_vector(s, "norm_apply", a.y, a.bias);
    return;
  }
  LT_LAUNCH(s, norm_apply, a.x.dtype, {a.kind, a.x.rows(), a.x.cols(), a.eps, false, false, a.weight_offset},
            static_cast<int>(a.moments.elements() / each), a.y.data, a.mean.data, a.rstd.data, a.x.data,
            a.moments.data, a.weight.data, a.bias.data);
}

void norm_cut_dots(Stream& s, const NormCutBackward& a) {
  LT_CHECK(a.dy.shape == a.x.shape && a.dots.elements() == a.x.rows() * norm_moment_count(a.kind) &&
               a.dweight.elements() == a.x.cols(),
           "norm sums: expected dy {}, {} dots and dweight of {} elements, got dy {}, dots {}, dweight {}",
           to_string(a.x.shape), a.x.rows() * norm_moment_count(a.kind), a.x.cols(), to_string(a.dy.shape),
           to_string(a.dots.shape), to_string(a.dweight.shape));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("norm_cut_dots", OpClass::elementwise, 6.0 * a.x.elements(), {a.dots}, {a.dy, a.x}));
    place(s, "norm_cut_dots", Rule::sum_columns, {a.dots}, {a.dy, a.x, a.rstd});
    place(s, "norm_cut_dots (weight)", Rule::sum_rows, {a.dweight}, {a.dy, a.x, a.rstd}, a.accumulate);
    if (a.dbias.defined()) place(s, "norm_cut_dots (bias)", Rule::sum_rows, {a.dbias}, {a.dy}, a.accumulate);
    return;
  }
  LT_LAUNCH(s, norm_cut_dots, a.x.dtype,
            {a.kind, a.x.rows(), a.x.cols(), 0, a.accumulate, false, a.weight_offset}, a.dots.data,
            a.dweight.data, a.dbias.data, a.dy.data, a.x.data, a.weight.data, a.mean.data, a.rstd.data);
}

void norm_cut_backward(Stream& s, const NormCutBackward& a) {
  LT_CHECK(
      a.dx.shape == a.x.shape && a.dy.shape == a.x.shape && a.all_cols >= a.x.cols(),
      "norm backward: expected dy and dx {} and at least {} columns in all, got dy {}, dx {}, {} columns",
      to_string(a.x.shape), a.x.cols(), to_string(a.dy.shape), to_string(a.dx.shape), a.all_cols);
  if (s.meta()) {
    OpCost cost =
        op_cost("norm_cut_backward", OpClass::elementwise, 8.0 * a.x.elements(), {a.dx}, {a.dy, a.x});
    if (!a.first) cost.bytes += static_cast<double>(a.dx.bytes());
    s.meta()->add(s, cost);
    if (a.first) {
      place(s, "norm_cut_backward", Rule::elementwise, {a.dx}, {a.dy, a.x, a.dots, a.rstd});
    } else {
      place(s, "norm_cut_backward", Rule::elementwise, {a.dx}, {a.dx, a.dy, a.x, a.dots, a.rstd});
    }
    place_add_vector(s, "norm_cut_backward", a.dx, a.weight);
    return;
  }
  LT_LAUNCH(s, norm_cut_backward, a.x.dtype,
            {a.kind, a.x.rows(), a.x.cols(), 0, false, a.first, a.weight_offset}, a.all_cols, a.dx.data,
            a.dy.data, a.x.data, a.weight.data, a.mean.data, a.rstd.data, a.dots.data);
}

}  // namespace ltrain
