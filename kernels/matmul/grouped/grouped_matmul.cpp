#include "kernels/matmul/grouped/grouped_matmul.h"

#include <cstring>
#include <numeric>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/grouped/grouped_gemm.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/last_op.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {

int64_t total_rows(const GroupRows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

Tensor group_matrix(const Tensor& w, int64_t g) {
  const int64_t n = w.elements() / w.shape[0];
  return w.flat(g * n, {n / w.cols(), w.cols()});
}

namespace {

void check(const Tensor& wide, const Tensor& narrow, const Tensor& w, const GroupRows& rows) {
  LT_CHECK(static_cast<int64_t>(rows.size()) == w.shape[0] && narrow.cols() == w.cols() &&
               wide.cols() == w.elements() / w.shape[0] / w.cols() && wide.shape[0] >= total_rows(rows) &&
               narrow.shape[0] >= total_rows(rows),
           "grouped matmul: expected w (groups, ..., K) for {} groups and at least {} rows of both operands, "
           "got operands {} and {} and w {}",
           rows.size(), total_rows(rows), to_string(wide.shape), to_string(narrow.shape), to_string(w.shape));
}

OpCost cost_of(const char* name, GroupedProduct kind, const GroupRows& rows, const Tensor& w,
               const Tensor& out, const Tensor& a, const Tensor& b) {
  const double n = static_cast<double>(total_rows(rows)), k = static_cast<double>(w.cols()),
               width = static_cast<double>(w.elements()) / static_cast<double>(w.shape[0]) / k;
  OpCost cost = op_cost(name, OpClass::matmul, 2 * n * width * k, {}, {});
  cost.dtype = a.dtype;
  const auto bytes = [&](const Tensor& t) {
    return t.shape.rank == 2 ? n * static_cast<double>(t.cols() * dtype_size(t.dtype)) : 1.0 * t.bytes();
  };
  cost.bytes = bytes(out) + bytes(a) + bytes(b);
  // Sizes of one group's matmul, for the profile.
  cost.m = static_cast<int64_t>(n) / std::max<int64_t>(1, w.shape[0]);
  cost.n = static_cast<int64_t>(width), cost.k = static_cast<int64_t>(k);
  if (kind == GroupedProduct::input_gradient) std::swap(cost.n, cost.k);
  if (kind == GroupedProduct::weight_gradient) {
    cost.role = OpRole::weight_gradient;
    const int64_t rows_of = cost.m;
    cost.m = cost.n, cost.n = cost.k, cost.k = rows_of;
  }
  return cost;
}

/// Calls f(group, first row, rows) for every group.
template <class F>
void each_group(const GroupRows& rows, F&& f) {
  int64_t first = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    f(static_cast<int64_t>(g), first, rows[g]);
    first += rows[g];
  }
}

/// Lengths of the matmuls of `rows` rows, if groups have matmuls of their own. Usually all rows at once.
/// oneDNN compiles a primitive for each size, and gets a few different lengths only.
template <class F>
void each_piece(const Stream& s, DType type, int64_t rows, F&& f) {
  constexpr int64_t kWhole = 256;
  if (s.device() == DeviceKind::cuda || type == DType::f64 || packs(type)) {
    if (rows > 0) f(0, rows);
    return;
  }
  int64_t at = 0;
  const auto take = [&](int64_t n) {
    if (n > 0) f(at, n);
    at += n;
  };
  take(rows / kWhole * kWhole);
  for (int64_t n = kWhole / 2; n >= 32; n /= 2)
    if (rows & n) take(n);
  take(rows % 32);
}

/// Runs one kernel for all groups if one supports them, else returns false.
bool run_at_once(Stream& s, GroupedProduct kind, const Tensor& out, const Tensor& a, const Tensor& b,
                 const GroupRows& rows, bool accumulate = false) {
  if (s.device() != DeviceKind::cuda) return false;
  const bool gradient = kind == GroupedProduct::weight_gradient;
  const Tensor& w = gradient ? out : b;
  const GroupedOperands o{.kind = kind,
                          .out = out,
                          .a = a,
                          .b = b,
                          .n = w.elements() / w.shape[0] / w.cols(),
                          .k = w.cols(),
                          .accumulate = accumulate};
  static const int capability = device_info(DeviceKind::cuda).capability;
  GroupedGemmTraits traits;
  traits.type = a.dtype == b.dtype && out.dtype == (gradient ? DType::f32 : a.dtype) ? a.dtype : DType::f32;
  traits.n = o.n, traits.k = o.k;
  traits.capability = capability;
  for (const Tensor& t : {out, a, b}) traits.aligned &= reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  const GroupedGemm kernel = choose_grouped_gemm(traits);
  if (kernel == GroupedGemm::each) return false;
  OpArguments sizes = product_arguments(a.dtype, a.shape[0], o.n, o.k);
  sizes.add("groups", static_cast<int64_t>(rows.size()));
  s.note_arguments(sizes);
  grouped_gemm_cuda(s, o, rows, kernel);
  return true;
}

}  // namespace

void grouped_matmul(Stream& s, Tensor y, Tensor x, Tensor w, const GroupRows& rows) {
  check(y, x, w, rows);
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_matmul", GroupedProduct::forward, rows, w, y, x, w));
    if (packs(x.dtype)) s.meta()->need_panels(packed_bytes(x.shape[0], y.cols(), x.cols(), x.dtype, y.dtype));
    place_grouped_matmul(s, y, x, w, GroupedProduct::forward, false);
    return;
  }
  const OpRange range(s, "grouped_matmul");
  if (run_at_once(s, GroupedProduct::forward, y, x, w, rows)) return;
  MatmulArgs args;
  args.trans_b = true;
  each_group(rows, [&](int64_t g, int64_t first, int64_t n) {
    each_piece(s, w.dtype, n, [&](int64_t at, int64_t some) {
      run_matmul(s, y.narrow(first + at, some), x.narrow(first + at, some), group_matrix(w, g), args);
    });
  });
}

void grouped_matmul_dx(Stream& s, Tensor dx, Tensor dy, Tensor w, const GroupRows& rows) {
  check(dy, dx, w, rows);
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_matmul_dx", GroupedProduct::input_gradient, rows, w, dx, dy, w));
    if (packs(dy.dtype))
      s.meta()->need_panels(packed_bytes(dy.shape[0], dx.cols(), dy.cols(), dy.dtype, dx.dtype));
    place_grouped_matmul(s, dx, dy, w, GroupedProduct::input_gradient, false);
    return;
  }
  const OpRange range(s, "grouped_matmul_dx");
  if (run_at_once(s, GroupedProduct::input_gradient, dx, dy, w, rows)) return;
  each_group(rows, [&](int64_t g, int64_t first, int64_t n) {
    each_piece(s, w.dtype, n, [&](int64_t at, int64_t some) {
      run_matmul(s, dx.narrow(first + at, some), dy.narrow(first + at, some), group_matrix(w, g), {});
    });
  });
}

void grouped_matmul_dw(Stream& s, Tensor dw, Tensor dy, Tensor x, const GroupRows& rows, bool accumulate) {
  check(dy, x, dw, rows);
  if (s.meta()) {
    s.meta()->add(s, cost_of("grouped_matmul_dw", GroupedProduct::weight_gradient, rows, dw, dw, dy, x));
    if (packs(dy.dtype))
      s.meta()->need_panels(packed_bytes_of_rows(dy.cols(), x.cols(), dy.shape[0], x.dtype, dw.dtype));
    place_grouped_matmul(s, dw, dy, x, GroupedProduct::weight_gradient, accumulate);
    return;
  }
  const OpRange range(s, "grouped_matmul_dw");
  if (run_at_once(s, GroupedProduct::weight_gradient, dw, dy, x, rows, accumulate)) return;
  each_group(rows, [&](int64_t g, int64_t first, int64_t n) {
    const Tensor out = group_matrix(dw, g);
    if (n == 0 && !accumulate) fill_zero(s, out);
    each_piece(s, x.dtype, n, [&](int64_t at, int64_t some) {
      MatmulArgs args;
      args.trans_a = true;
      args.accumulate = accumulate || at > 0;
      run_matmul(s, out, dy.narrow(first + at, some), x.narrow(first + at, some), args);
    });
  });
}

}  // namespace ltrain
