#include "kernels/optimizer/adafactor.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void factor_sums(Stream& s, Tensor sums, Tensor grad, const MatrixPart& part, int64_t rows, double scale) {
  LT_CHECK(grad.elements() == part.count && sums.dtype == DType::f64,
           "factor_sums: expected grad of {} elements and f64 sums, got {} elements and {}", part.count,
           grad.elements(), dtype_name(sums.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("factor_sums", OpClass::optimizer, 4.0 * part.count, {}, {grad}));
    place(s, "factor_sums", Rule::sum_rows, {sums}, {grad}, /*accumulate=*/true);
    return;
  }
  LT_LAUNCH(s, factor_sums, grad.dtype, sums.ptr<double>(), grad.data, part, rows, scale);
}

void factor_moments(Stream& s, Tensor factors, Tensor sums, int64_t rows, int64_t cols, double beta) {
  LT_CHECK(factors.elements() == rows + cols + 1 && sums.elements() == rows + cols,
           "factor_moments: expected {} factors and {} sums for a matrix of {} x {}, got {} and {}",
           rows + cols + 1, rows + cols, rows, cols, factors.elements(), sums.elements());
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("factor_moments", OpClass::optimizer, 3.0 * (rows + cols), {factors}, {factors, sums}));
    place_update(s, "factor_moments", factors, sums, factors.record->place);
    return;
  }
  LT_LAUNCH(s, factor_moments, factors.dtype, factors.data, sums.ptr<double>(), rows, cols, beta);
}

void factor_direction(Stream& s, Tensor grad, Tensor factors, const MatrixPart& part, int64_t rows,
                      double scale, double eps) {
  LT_CHECK(grad.elements() == part.count && grad.dtype == factors.dtype,
           "factor_direction: expected grad of {} {} elements, got {} {}", part.count,
           dtype_name(factors.dtype), grad.elements(), dtype_name(grad.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("factor_direction", OpClass::optimizer, 6.0 * part.count, {grad}, {grad}));
    place_update(s, "factor_direction", grad, grad, grad.record->place);
    return;
  }
  LT_LAUNCH(s, factor_direction, grad.dtype, grad.data, factors.data, part, rows, factors.elements(), scale,
            eps);
}

void plain_direction(Stream& s, Tensor grad, Tensor v, double beta, double scale, double eps) {
  LT_CHECK(grad.elements() == v.elements() && grad.dtype == v.dtype,
           "plain_direction: expected second moments of {} {} elements, got {} {}", grad.elements(),
           dtype_name(grad.dtype), v.elements(), dtype_name(v.dtype));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("plain_direction", OpClass::optimizer, 6.0 * grad.elements(), {grad, v}, {grad, v}));
    place_update(s, "plain_direction", grad, grad, v.record->place);
    return;
  }
  LT_LAUNCH(s, plain_direction, grad.dtype, grad.data, v.data, grad.elements(), beta, scale, eps);
}

}  // namespace ltrain
