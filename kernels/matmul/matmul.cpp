#include "kernels/matmul/matmul.h"

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {

namespace {

/// The variants run at different speeds, so a profile knows them apart.
std::string_view name_of(const MatmulArgs& args, bool tf32) {
  if (tf32) return "matmul_tf32";
  if (args.trans_a) return args.accumulate ? "matmul_tn_add" : "matmul_tn";
  return args.trans_b ? "matmul_nt" : "matmul_nn";
}

}  // namespace

void matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  LT_CHECK(a.shape.rank == 2 && b.shape.rank == 2 && out.shape.rank == 2, "matmul takes matrices: {} {} {}",
           to_string(out.shape), to_string(a.shape), to_string(b.shape));
  const int64_t m = a.shape[args.trans_a ? 1 : 0], k = a.shape[args.trans_a ? 0 : 1];
  const int64_t n = b.shape[args.trans_b ? 0 : 1], kb = b.shape[args.trans_b ? 1 : 0];
  LT_CHECK(k == kb && out.shape[0] == m && out.shape[1] == n, "matmul: {}{} times {}{} into {}",
           to_string(a.shape), args.trans_a ? "^T" : "", to_string(b.shape), args.trans_b ? "^T" : "",
           to_string(out.shape));
  LT_CHECK(a.dtype == b.dtype && (out.dtype == a.dtype || (is_half(a.dtype) && out.dtype == DType::f32)),
           "matmul: {} times {} into {}", dtype_name(a.dtype), dtype_name(b.dtype), dtype_name(out.dtype));
  if (args.bias.defined())
    LT_CHECK(args.bias.elements() == n && args.bias.dtype == out.dtype, "matmul: bias {} {} for {} columns",
             dtype_name(args.bias.dtype), to_string(args.bias.shape), n);
  if (s.meta()) {
    const bool tf32 = s.tf32 && a.dtype == DType::f32;
    OpCost cost = op_cost(name_of(args, tf32), OpClass::matmul, 2.0 * m * n * k, {out}, {a, b});
    if (args.accumulate) cost.bytes += static_cast<double>(out.bytes());
    cost.dtype = a.dtype;
    cost.m = m, cost.n = n, cost.k = k;
    s.meta()->add(s, cost);
    if (tf32 || widens(a.dtype)) s.meta()->need_panels(widen_panel_bytes(m, n, k, is_half(out.dtype)));
    place_matmul(s, out, a, args.trans_a, b, args.trans_b, args.accumulate);
    if (args.bias.defined()) place_add_vector(s, "bias", out, args.bias);
    return;
  }
  run_matmul(s, out, a, b, args);
}

void run_matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  const OpRange range(s, name_of(args, s.tf32 && a.dtype == DType::f32));
  if (s.device() == DeviceKind::cuda) return matmul_cuda(s, out, a, b, args);
  s.launch([=, tf32 = s.tf32] {
    if (a.dtype == DType::f64) {
      LT_CPU(matmul_f64_cpu)
      (out.ptr<double>(), a.ptr<double>(), b.ptr<double>(),
       args.bias.defined() ? args.bias.ptr<double>() : nullptr, m, n, k, args.trans_a, args.trans_b,
       args.accumulate);
    } else if (m <= kFewRows && !args.trans_a && args.trans_b && !(tf32 && a.dtype == DType::f32)) {
      LT_CPU(matmul_few_rows_cpu)
      (a.dtype, out.dtype, out.data, a.data, b.data, args.bias.defined() ? args.bias.data : nullptr, m, n, k,
       args.accumulate);
    } else {
      matmul_onednn(out, a, b, args, tf32);
    }
  });
}

}  // namespace ltrain
