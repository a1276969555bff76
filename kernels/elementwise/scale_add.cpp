#include "kernels/elementwise/scale_add.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void scale_add(Stream& s, Tensor y, double a, Tensor x, double b, Tensor squares, double eps) {
  const int64_t n = y.elements();
  LT_CHECK(!x.defined() || (x.elements() == n && x.dtype == y.dtype),
           "scale_add: expected x of {} {} elements, got {} {}", n, dtype_name(y.dtype), x.elements(),
           dtype_name(x.dtype));
  LT_CHECK(!squares.defined() || (squares.elements() == 1 && squares.dtype == DType::f64),
           "scale_add: expected one f64 sum of squares, got {} {}", dtype_name(squares.dtype),
           to_string(squares.shape));
  if (s.meta()) {
    OpCost cost = op_cost("scale_add", OpClass::optimizer, 3.0 * n, {y}, {y});
    if (x.defined()) cost.bytes += static_cast<double>(x.bytes());
    s.meta()->add(s, cost);
    if (squares.defined())
      for (int i = 0; i < kAxisCount; ++i)
        if (const Axis axis = static_cast<Axis>(i); axis != Axis::pipeline)
          place_require(s, "scale_add", squares, axis, Placement::R());
    if (x.defined()) {
      place(s, "scale_add", Rule::linear, {y}, {y, x});
    } else {
      place(s, "scale_add", Rule::linear, {y}, {y});
    }
    return;
  }
  LT_LAUNCH(s, scale_add, y.dtype, y.data, a, x.data, b, static_cast<const double*>(squares.data), eps, n);
}

}  // namespace ltrain
