#include "kernels/matmul/grouped/grouped_bias.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

int64_t checked_rows(const Tensor& y, const Tensor& bias, const GroupRows& rows) {
  const int64_t n = total_rows(rows);
  LT_CHECK(static_cast<int64_t>(rows.size()) == bias.shape[0] &&
               y.cols() == bias.elements() / bias.shape[0] && y.shape[0] >= n,
           "grouped bias: expected {} groups with a bias for each of {} columns and at least {} rows of y, "
           "got bias {} and y {}",
           rows.size(), y.cols(), n, to_string(bias.shape), to_string(y.shape));
  return n;
}

/// Calls f(group, rows of the group in `y`) for every group.
template <class F>
void each_group(const Tensor& y, const GroupRows& rows, F&& f) {
  int64_t first = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    f(static_cast<int64_t>(g), y.narrow(first, rows[g]));
    first += rows[g];
  }
}

Tensor vector(const Tensor& stack, int64_t g) {
  const int64_t n = stack.elements() / stack.shape[0];
  return stack.flat(g * n, {n});
}

OpCost cost_of(const char* name, const Tensor& y, int64_t rows, int passes) {
  OpCost cost = op_cost(name, OpClass::elementwise, 1.0 * static_cast<double>(rows * y.cols()), {}, {});
  cost.dtype = y.dtype;
  cost.bytes = static_cast<double>(passes * rows * y.cols() * dtype_size(y.dtype));
  return cost;
}

}  // namespace

void grouped_add_bias(Stream& s, Tensor y, Tensor bias, const GroupRows& rows) {
  const int64_t n = checked_rows(y, bias, rows);
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_add_bias", y, n, 2));
    place_grouped_bias(s, "grouped_add_bias", y, bias);
    return;
  }
  const OpRange range(s, "grouped_add_bias");
  each_group(y, rows, [&](int64_t g, const Tensor& part) {
    if (part.shape[0] > 0) add_bias(s, part, vector(bias, g));
  });
}

void grouped_sum_rows(Stream& s, Tensor dbias, Tensor dy, const GroupRows& rows, bool accumulate) {
  const int64_t n = checked_rows(dy, dbias, rows);
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_sum_rows", dy, n, 1));
    place_grouped_bias_gradient(s, "grouped_sum_rows", dbias, dy, accumulate);
    return;
  }
  const OpRange range(s, "grouped_sum_rows");
  each_group(dy, rows, [&](int64_t g, const Tensor& part) {
    const Tensor out = vector(dbias, g);
    if (part.shape[0] > 0)
      sum_rows(s, out, part, accumulate);
    else if (!accumulate)
      fill_zero(s, out);
  });
}

}  // namespace ltrain
