#include "kernels/matmul/sparse/prune_unbiased.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void prune_unbiased(Stream& s, Tensor out, Tensor dy, const RowRandom& random, ColumnRange range) {
  LT_CHECK(out.shape == dy.shape && out.dtype == dy.dtype, "prune_unbiased: expected out {} {}, got {} {}",
           dtype_name(dy.dtype), to_string(dy.shape), dtype_name(out.dtype), to_string(out.shape));
  LT_CHECK(dy.rows() % 2 == 0, "prune_unbiased: expected an even number of rows, got {}", dy.rows());
  LT_CHECK(range.first >= 0 && range.count >= 0 && range.first + range.count <= dy.cols(),
           "prune_unbiased: expected columns within {}, got {} from {} on", dy.cols(), range.count,
           range.first);
  if (s.meta()) {
    Tensor to = out, from = dy;
    to.shape = from.shape = {dy.rows(), range.count};
    s.meta()->add(s, op_cost("prune_unbiased", OpClass::elementwise, 3.0 * from.elements(), {to}, {from}));
    place(s, "prune_unbiased", Rule::elementwise, {out}, {dy});
    return;
  }
  LT_LAUNCH(s, prune_unbiased, dy.dtype, out.data, dy.data, dy.rows(), dy.cols(), random.args(), range);
}

}  // namespace ltrain
