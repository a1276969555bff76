#include "kernels/matmul/matmul_fp8.h"

#include "kernels/matmul/matmul_packed.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/last_op.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

/// Arithmetic of tests: full operands, in f64.
void matmul_fp8_wide(Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.codes.shape[1];
  double* wide_a = static_cast<double*>(thread_scratch(1, m * k * 8));
  double* wide_b = static_cast<double*>(thread_scratch(2, n * k * 8));
  LT_CPU(dequantize_wide_cpu)(a, wide_a);
  LT_CPU(dequantize_wide_cpu)(b, wide_b);
  LT_CPU(matmul_f64_cpu)
  (out.ptr<double>(), wide_a, wide_b, args.bias.defined() ? args.bias.ptr<double>() : nullptr, m, n, k, false,
   true, args.accumulate);
}

}  // namespace

void matmul_fp8(Stream& s, Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& given) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.codes.shape[1];
  LT_CHECK(a.codes.shape[0] == m && b.codes.shape[0] == n && b.codes.shape[1] == k && is_fp8(a.codes.dtype) &&
               is_fp8(b.codes.dtype),
           "FP8 matmul: expected FP8 codes a ({}, {}) and b ({}, {}), got a {} {} and b {} {}", m, k, n, k,
           dtype_name(a.codes.dtype), to_string(a.codes.shape), dtype_name(b.codes.dtype),
           to_string(b.codes.shape));
  LT_CHECK(a.codes.dtype == DType::f8e4m3 || b.codes.dtype == DType::f8e4m3,
           "FP8 matmul: expected at least one operand of f8e4m3, got two of {}, which no device multiplies",
           dtype_name(a.codes.dtype));
  LT_CHECK(!given.trans_a && !given.trans_b,
           "FP8 matmul: expected operands transposed by quantize, got trans_a {} and trans_b {}",
           given.trans_a, given.trans_b);
  MatmulArgs args = given;
  args.trans_b = true;
  LT_CHECK((a.block_rows > 0) == (b.block_rows > 0),
           "FP8 matmul: expected steps of blocks for both operands or for none, got block_rows {} and {}",
           a.block_rows, b.block_rows);
  const char* name = a.block_rows ? "matmul_fp8_blocks" : "matmul_fp8";
  if (s.meta()) {
    OpCost cost = op_cost(name, OpClass::matmul, 2.0 * m * n * k, {out}, {a.codes, b.codes});
    if (args.accumulate) cost.bytes += static_cast<double>(out.bytes());
    cost.dtype = DType::f8e4m3;
    cost.m = m, cost.n = n, cost.k = k;
    if (a.transposed) cost.role = OpRole::weight_gradient;
    s.meta()->add(s, cost);
    if (out.dtype != DType::f64) s.meta()->need_panels(packed_bytes(m, n, k, DType::f8e4m3, out.dtype));
    place_matmul(s, out, a.of, a.transposed, b.of, !b.transposed, args.accumulate);
    if (args.bias.defined()) place_add_vector(s, "bias", out, args.bias);
    return;
  }
  const OpRange range(s, name);
  if (matmul_without_work(s, out, k, args)) return;
  if (s.device() == DeviceKind::cuda) {
    s.note_arguments(product_arguments(a.codes.dtype, m, n, k));
    return a.block_rows ? matmul_fp8_blocks_cuda(s, out, a, b, args) : matmul_fp8_cuda(s, out, a, b, args);
  }
  s.launch([=] {
    out.dtype == DType::f64 ? matmul_fp8_wide(out, a, b, args) : matmul_fp8_packed(out, a, b, args);
  });
}

}  // namespace ltrain
