#include "kernels/matmul/matmul.h"

#include <cstring>

#include "kernels/matmul/matmul_packed.h"
#include "kernels/matmul/matmul_sparse.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/last_op.h"
#include "kernels/tensor/stream_cuda.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {

namespace {

/// True if zeros are skipped. m, n: rows and columns of the output.
bool skips_zeros(DType type, int64_t m, int64_t n, const MatmulArgs& args, bool tf32) {
  if (type != DType::f32 || tf32) return false;
  if (!args.trans_a) return args.sparse_b && m >= kFewestSparseRows;
  return args.sparse_a && !args.trans_b && !args.bias.defined() && n >= kFewestSparseRows;
}

/// Op name of a variant. Variants run at different speeds, so that a profile has each of them.
std::string_view name_of(DType type, int64_t m, int64_t n, const MatmulArgs& args, bool tf32) {
  if (tf32) return "matmul_tf32";
  const bool sparse = skips_zeros(type, m, n, args, tf32);
  if (args.trans_a && args.accumulate) return sparse ? "matmul_tn_add_sparse" : "matmul_tn_add";
  if (args.trans_a) return sparse ? "matmul_tn_sparse" : "matmul_tn";
  if (args.trans_b) return sparse ? "matmul_nt_sparse" : "matmul_nt";
  return sparse ? "matmul_nn_sparse" : "matmul_nn";
}

/// True for few rows of a times b^T: nothing is packed.
bool few_rows(const Tensor& a, int64_t m, const MatmulArgs& args, bool tf32) {
  return m <= kFewRows && !args.trans_a && args.trans_b && a.dtype != DType::f64 && !tf32;
}

/// The operand with zeros is b of a SparseProduct.
SparseProduct sparse_product(Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  const bool gradient = args.trans_a;
  return {.out = out.ptr<float>(),
          .a = (gradient ? b : a).ptr<float>(),
          .b = (gradient ? a : b).ptr<float>(),
          .bias = args.bias.defined() ? args.bias.ptr<float>() : nullptr,
          .m = out.shape[gradient ? 1 : 0],
          .n = out.shape[gradient ? 0 : 1],
          .k = a.shape[gradient ? 0 : 1],
          .trans_b = args.trans_b,
          .gradient = gradient,
          .accumulate = args.accumulate};
}

}  // namespace

bool packs(DType t) { return t != DType::f64 && (t != DType::bf16 || bf16_matmul() != Bf16Matmul::onednn); }

std::array<int64_t, 3> packed_bytes(int64_t m, int64_t n, int64_t k, DType in, DType out) {
  return pack_bytes(m, n, pack_sums(k, packs_pairs(in)), is_half(out));
}

std::array<int64_t, 3> packed_bytes_of_rows(int64_t m, int64_t n, int64_t most, DType in, DType out) {
  const int64_t sums = pack_sums(most, packs_pairs(in));
  // blocks of longer contractions are not larger
  return pack_bytes(m, n, std::min(sums, kDepthBlock), is_half(out));
}

void matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  LT_CHECK(a.shape.rank == 2 && b.shape.rank == 2 && out.shape.rank == 2,
           "matmul: expected matrices of 2 dims, got out {}, a {}, b {}", to_string(out.shape),
           to_string(a.shape), to_string(b.shape));
  const int64_t m = a.shape[args.trans_a ? 1 : 0], k = a.shape[args.trans_a ? 0 : 1];
  const int64_t n = b.shape[args.trans_b ? 0 : 1], kb = b.shape[args.trans_b ? 1 : 0];
  LT_CHECK(k == kb && out.shape[0] == m && out.shape[1] == n,
           "matmul: expected op(a) (m, k), op(b) (k, n) and out (m, n), got a {}{}, b {}{}, out {}",
           to_string(a.shape), args.trans_a ? "^T" : "", to_string(b.shape), args.trans_b ? "^T" : "",
           to_string(out.shape));
  LT_CHECK(a.dtype == b.dtype && (out.dtype == a.dtype || (is_half(a.dtype) && out.dtype == DType::f32)),
           "matmul: expected a and b of one dtype, and out of that dtype or f32 for 16-bit operands; got a "
           "{}, b {}, out {}",
           dtype_name(a.dtype), dtype_name(b.dtype), dtype_name(out.dtype));
  if (args.bias.defined())
    LT_CHECK(args.bias.elements() == n && args.bias.dtype == out.dtype,
             "matmul: expected a bias of {} {} elements, got {} {}", n, dtype_name(out.dtype),
             dtype_name(args.bias.dtype), to_string(args.bias.shape));
  if (s.meta()) {
    const bool tf32 = s.tf32 && a.dtype == DType::f32;
    OpCost cost =
        op_cost(name_of(a.dtype, m, n, args, tf32), OpClass::matmul, 2.0 * m * n * k, {out}, {a, b});
    if (args.accumulate) cost.bytes += static_cast<double>(out.bytes());
    cost.dtype = a.dtype;
    cost.m = m, cost.n = n, cost.k = k;
    // A transposed `a` means a sum over token rows.
    if (args.trans_a) cost.role = OpRole::weight_gradient;
    const bool sparse = skips_zeros(a.dtype, m, n, args, tf32);
    if (sparse) cost.nonzeros = args.nonzeros;
    s.meta()->add(s, cost);
    // Steps before and after those with masks multiply all.
    if (sparse) s.meta()->need_panels(sparse_pack_bytes(args.trans_a ? m : n, k));
    if (packs(a.dtype) && !few_rows(a, m, args, tf32))
      s.meta()->need_panels(packed_bytes(m, n, k, a.dtype, out.dtype));
    place_matmul(s, out, a, args.trans_a, b, args.trans_b, args.accumulate);
    if (args.bias.defined()) place_add_vector(s, "bias", out, args.bias);
    return;
  }
  run_matmul(s, out, a, b, args);
}

bool matmul_without_work(Stream& s, Tensor out, int64_t k, const MatmulArgs& args) {
  if (out.elements() == 0) return true;
  if (k > 0) return false;
  LT_CHECK(!args.bias.defined(), "matmul: expected no bias with a contraction of 0 elements, got one");
  if (args.accumulate) return true;
  if (s.device() == DeviceKind::cuda)
    cuda::fill_bytes(s, out.data, out.bytes());
  else
    s.launch([=] { std::memset(out.data, 0, static_cast<size_t>(out.bytes())); });
  return true;
}

void run_matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  const bool tf32 = s.tf32 && a.dtype == DType::f32;
  const OpRange range(s, name_of(a.dtype, m, n, args, tf32));
  if (matmul_without_work(s, out, k, args)) return;
  if (s.device() == DeviceKind::cuda) {
    s.note_arguments(product_arguments(a.dtype, m, n, k));
    return matmul_cuda(s, out, a, b, args);
  }
  s.launch([=] {
    if (a.dtype == DType::f64) {
      LT_CPU(matmul_f64_cpu)
      (out.ptr<double>(), a.ptr<double>(), b.ptr<double>(),
       args.bias.defined() ? args.bias.ptr<double>() : nullptr, m, n, k, args.trans_a, args.trans_b,
       args.accumulate);
    } else if (few_rows(a, m, args, tf32)) {
      LT_CPU(matmul_few_rows_cpu)
      (a.dtype, out.dtype, out.data, a.data, b.data, args.bias.defined() ? args.bias.data : nullptr, m, n, k,
       args.accumulate);
    } else if (skips_zeros(a.dtype, m, n, args, tf32)) {
      LT_CPU(matmul_sparse_cpu)(sparse_product(out, a, b, args));
    } else if (packs(a.dtype)) {
      matmul_packed(out, a, b, args, tf32);
    } else {
      matmul_onednn(out, a, b, args);
    }
  });
}

}  // namespace ltrain
