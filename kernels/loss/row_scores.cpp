#include "kernels/loss/row_scores.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const char* op, Tensor rows, Tensor weight, Tensor targets) {
  LT_CHECK(weight.elements() == rows.cols() && targets.elements() == rows.rows(),
           "{}: expected {} weights and {} targets, got {} and {}", op, rows.cols(), rows.rows(),
           weight.elements(), targets.elements());
}

/// The scale with the weight of each row's text.
GradientScale scale_of(const ScoreGradient& g) {
  GradientScale scale = g.scale;
  scale.weights = g.weights.ptr<double>();
  scale.texts = g.texts.ptr<int32_t>();
  return scale;
}

}  // namespace

void row_scores(Stream& s, Tensor values, Tensor x, Tensor weight, Tensor targets) {
  check("row_scores", x, weight, targets);
  LT_CHECK(values.elements() == x.rows() && values.dtype == DType::f64 && weight.dtype == x.dtype,
           "row_scores: expected {} f64 scores of {} weights, got {} {} and {}", x.rows(),
           dtype_name(x.dtype), values.elements(), dtype_name(values.dtype), dtype_name(weight.dtype));
  if (s.meta()) {
    // An upper bound: every row may have a target.
    s.meta()->add(s, op_cost("row_scores", OpClass::elementwise, 2.0 * x.elements(), {values}, {x, targets}));
    place(s, "row_scores", Rule::sum_columns, {values}, {x, targets});
    return;
  }
  LT_LAUNCH(s, row_scores, x.dtype, values.ptr<double>(), x.data, weight.data, targets.ptr<int32_t>(),
            x.rows(), x.cols());
}

void row_scores_backward(Stream& s, Tensor dx, Tensor weight, const ScoreGradient& g) {
  check("row_scores_backward", dx, weight, g.targets);
  if (s.meta()) {
    s.meta()->add(s, op_cost("row_scores_backward", OpClass::elementwise, 1.0 * dx.elements(), {dx},
                             {g.targets, g.texts}));
    place(s, "row_scores_backward", Rule::elementwise, {dx}, {g.targets, g.texts});
    return;
  }
  LT_LAUNCH(s, row_scores_backward, dx.dtype, dx.data, weight.data, g.targets.ptr<int32_t>(), scale_of(g),
            dx.rows(), dx.cols());
}

void row_scores_weight(Stream& s, Tensor dweight, Tensor x, const ScoreGradient& g, bool accumulate) {
  check("row_scores_weight", x, dweight, g.targets);
  LT_CHECK(dweight.dtype == (x.dtype == DType::f64 ? DType::f64 : DType::f32),
           "row_scores_weight: expected a wide gradient for {} rows, got {}", dtype_name(x.dtype),
           dtype_name(dweight.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("row_scores_weight", OpClass::elementwise, 2.0 * x.elements(), {dweight},
                             {x, g.targets, g.texts}));
    place(s, "row_scores_weight", Rule::sum_rows, {dweight}, {x, g.targets}, accumulate);
    return;
  }
  LT_LAUNCH(s, row_scores_weight, x.dtype, dweight.data, x.data, g.targets.ptr<int32_t>(), scale_of(g),
            x.rows(), x.cols(), accumulate);
}

}  // namespace ltrain
