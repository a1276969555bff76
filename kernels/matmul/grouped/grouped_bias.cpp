#include "kernels/matmul/grouped/grouped_bias.h"

#include "kernels/elementwise/magnitude.h"
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

/// Checks that factors have two numbers for each of the columns of each group.
int64_t checked_factors(const Tensor& y, const Tensor& factors, const GroupRows& rows) {
  const int64_t n = total_rows(rows), groups = static_cast<int64_t>(rows.size());
  LT_CHECK(factors.shape == Shape({groups, y.cols(), 2}) && y.shape[0] >= n,
           "grouped magnitudes: expected factors ({}, {}, 2) and at least {} rows, got {} and {}", groups,
           y.cols(), n, to_string(factors.shape), to_string(y.shape));
  return n;
}

/// A view of `t` that is `p` on the axes on which `t` is summed over ranks.
Tensor place_summands(Stream& s, const Tensor& t, Placement p) {
  const Tensor view = place_apart(s, t);
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); t.record->place[a].kind == Placement::partial)
      place_set(s, view, a, p);
  return view;
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

void grouped_scale_columns(Stream& s, Tensor y, Tensor x, Tensor factors, const GroupRows& rows) {
  const int64_t n = checked_factors(x, factors, rows);
  LT_CHECK(y.shape == x.shape && y.dtype == x.dtype, "grouped_scale_columns: expected {} {}, got {} {}",
           to_string(x.shape), dtype_name(x.dtype), to_string(y.shape), dtype_name(y.dtype));
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_scale_columns", x, n, 2));
    // Factors that are equal on all ranks multiply each summand.
    place_grouped_bias(s, "grouped_scale_columns", place_summands(s, x, Placement::R()), factors);
    place(s, "grouped_scale_columns", Rule::linear, {y}, {x});
    return;
  }
  const OpRange range(s, "grouped_scale_columns");
  int64_t first = 0;
  for (size_t g = 0; g < rows.size(); first += rows[g++])
    if (rows[g] > 0)
      scale_columns(s, y.narrow(first, rows[g]), x.narrow(first, rows[g]),
                    factors.narrow(static_cast<int64_t>(g), 1));
}

void grouped_magnitude_gradient(Stream& s, Tensor out, Tensor a, Tensor b, Tensor factors,
                                const GroupRows& rows, bool accumulate) {
  const int64_t n = checked_factors(a, factors, rows);
  LT_CHECK(a.shape == b.shape && a.dtype == b.dtype && 2 * out.elements() == factors.elements(),
           "grouped_magnitude_gradient: expected two {} {} and {} sums, got {} {} and {}", to_string(a.shape),
           dtype_name(a.dtype), factors.elements() / 2, to_string(b.shape), dtype_name(b.dtype),
           to_string(out.shape));
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_magnitude_gradient", a, n, 2));
    place_grouped_bias(s, "grouped_magnitude_gradient", place_apart(s, a), factors);
    // Each summand of b needs the same a: products are summands too, as those of rows that vary.
    const Tensor products = place_apart(s, a, "products of rows");
    place(s, "grouped_magnitude_gradient", Rule::elementwise, {products},
          {a, place_summands(s, b, Placement::R())});
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis axis = static_cast<Axis>(i); b.record->place[axis].kind == Placement::partial) {
        place_require(s, "grouped_magnitude_gradient", a, axis, Placement::R());
        place_set(s, products, axis, Placement::V());
      }
    place_grouped_bias_gradient(s, "grouped_magnitude_gradient", out, products, accumulate);
    return;
  }
  const OpRange range(s, "grouped_magnitude_gradient");
  const int64_t each = a.cols();
  int64_t first = 0;
  for (size_t g = 0; g < rows.size(); first += rows[g++]) {
    const int64_t group = static_cast<int64_t>(g);
    const Tensor sums = out.flat(group * each, {each});
    if (rows[g] > 0)
      magnitude_gradient(s, sums, a.narrow(first, rows[g]), b.narrow(first, rows[g]),
                         factors.narrow(group, 1), accumulate);
    else if (!accumulate)
      fill_zero(s, sums);
  }
}

}  // namespace ltrain
