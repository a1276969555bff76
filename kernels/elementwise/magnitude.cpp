#include "kernels/elementwise/magnitude.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

DType wide_of(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Checks a tensor with two numbers for each of `rows` rows.
void check_pairs(const char* op, const char* name, const Tensor& t, int64_t rows, DType of) {
  LT_CHECK(t.elements() == 2 * rows && t.dtype == wide_of(of), "{}: expected {} ({}, 2) {}, got {} {}", op,
           name, rows, dtype_name(wide_of(of)), to_string(t.shape), dtype_name(t.dtype));
}

}  // namespace

void row_squares(Stream& s, Tensor squares, Tensor w, Tensor v) {
  LT_CHECK(v.shape == w.shape && v.dtype == w.dtype, "row_squares: expected two {} {}, got {} {}",
           to_string(w.shape), dtype_name(w.dtype), to_string(v.shape), dtype_name(v.dtype));
  check_pairs("row_squares", "squares", squares, w.rows(), w.dtype);
  if (s.meta()) {
    s.meta()->add(s, op_cost("row_squares", OpClass::elementwise, 5.0 * w.elements(), {squares}, {w, v}));
    place(s, "row_squares", Rule::sum_columns, {squares}, {w, v});
    return;
  }
  LT_LAUNCH(s, row_squares, w.dtype, squares.data, w.data, v.data, w.rows(), w.cols());
}

void magnitude_factors(Stream& s, Tensor factors, Tensor squares, Tensor change) {
  check_pairs("magnitude_factors", "factors", factors, change.elements(), change.dtype);
  check_pairs("magnitude_factors", "squares", squares, change.elements(), change.dtype);
  if (s.meta()) {
    s.meta()->add(s, op_cost("magnitude_factors", OpClass::elementwise, 8.0 * change.elements(), {factors},
                             {squares, change}));
    place(s, "magnitude_factors", Rule::elementwise, {factors}, {squares, change});
    return;
  }
  LT_LAUNCH(s, magnitude_factors, change.dtype, factors.data, squares.data, change.data, change.elements());
}

void scale_columns(Stream& s, Tensor y, Tensor x, Tensor factors) {
  LT_CHECK(y.shape == x.shape && y.dtype == x.dtype, "scale_columns: expected {} {}, got {} {}",
           to_string(x.shape), dtype_name(x.dtype), to_string(y.shape), dtype_name(y.dtype));
  check_pairs("scale_columns", "factors", factors, x.cols(), x.dtype);
  if (s.meta()) {
    s.meta()->add(s, op_cost("scale_columns", OpClass::elementwise, 1.0 * x.elements(), {y}, {x}));
    place_vector_of_columns(s, "scale_columns", x, factors, false);
    place(s, "scale_columns", Rule::linear, {y}, {x});
    return;
  }
  LT_LAUNCH(s, scale_columns, x.dtype, y.data, x.data, factors.data, x.rows(), x.cols());
}

void magnitude_gradient(Stream& s, Tensor out, Tensor a, Tensor b, Tensor factors, bool accumulate) {
  LT_CHECK(
      a.shape == b.shape && a.dtype == b.dtype && out.elements() == a.cols() && out.dtype == wide_of(a.dtype),
      "magnitude_gradient: expected two {} {} and {} sums, got {} {} and {}", to_string(a.shape),
      dtype_name(a.dtype), a.cols(), to_string(b.shape), dtype_name(b.dtype), to_string(out.shape));
  check_pairs("magnitude_gradient", "factors", factors, a.cols(), a.dtype);
  if (s.meta()) {
    s.meta()->add(s, op_cost("magnitude_gradient", OpClass::elementwise, 2.0 * a.elements(), {}, {a, b}));
    place_gradient_of_products(s, "magnitude_gradient", out, factors, a, b, accumulate);
    return;
  }
  LT_LAUNCH(s, magnitude_gradient, a.dtype, out.data, a.data, b.data, factors.data, a.rows(), a.cols(),
            accumulate);
}

}  // namespace ltrain
