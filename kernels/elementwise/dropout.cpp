#include "kernels/elementwise/dropout.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

DropoutArgs dropout_args(const Dropout& d) {
  DropoutArgs a;
  if (!d.on()) return a;
  static_cast<RowRandomArgs&>(a) = d.args();
  a.threshold = dropout_threshold(d.p);
  a.scale = static_cast<float>(1.0 / (1.0 - d.p));
  return a;
}

void dropout(Stream& s, Tensor y, Tensor x, const Dropout& d) {
  LT_CHECK(y.shape == x.shape && y.dtype == x.dtype, "dropout: expected y {} {}, got {} {}",
           dtype_name(x.dtype), to_string(x.shape), dtype_name(y.dtype), to_string(y.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("dropout", OpClass::elementwise, 3.0 * x.elements(), {y}, {x}));
    place(s, "dropout", Rule::linear, {y}, {x});
    return;
  }
  LT_LAUNCH(s, dropout, x.dtype, y.data, x.data, x.rows(), x.cols(), dropout_args(d));
}

}  // namespace ltrain
