#include "kernels/moe/jitter.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void jitter(Stream& s, Tensor y, Tensor x, const RowRandom& random, double eps) {
  LT_CHECK(y.shape == x.shape && y.dtype == x.dtype && eps > 0 && eps < 1,
           "jitter: expected y {} {} and eps in (0, 1), got y {} {} and eps {}", dtype_name(x.dtype),
           to_string(x.shape), dtype_name(y.dtype), to_string(y.shape), eps);
  if (s.meta()) {
    s.meta()->add(s, op_cost("jitter", OpClass::elementwise, 3.0 * x.elements(), {y}, {x}));
    place(s, "jitter", Rule::linear, {y}, {x});
    return;
  }
  LT_LAUNCH(s, jitter, x.dtype, y.data, x.data, x.rows(), x.cols(), random.args(), eps);
}

}  // namespace ltrain
