// Matrix products through cuBLASLt. Its matrices are column-major, ours row-major: out^T = op(b)^T op(a)^T,
// with each row-major matrix read as the column-major one of its transpose.
#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "kernels/core/device_cuda.h"
#include "kernels/core/library_cuda.h"
#include "kernels/ops/matmul.h"

namespace ltrain {
namespace cuda {
namespace {

struct Lt {
  Library library{"libcublasLt", {13, 12}};
#define LT_LOAD(f) decltype(&::f) f = library.function<std::remove_pointer_t<decltype(&::f)>>(#f)
  LT_LOAD(cublasLtCreate);
  LT_LOAD(cublasLtMatmul);
  LT_LOAD(cublasLtMatmulAlgoGetHeuristic);
  LT_LOAD(cublasLtMatmulDescCreate);
  LT_LOAD(cublasLtMatmulDescSetAttribute);
  LT_LOAD(cublasLtMatrixLayoutCreate);
  LT_LOAD(cublasLtMatmulPreferenceCreate);
  LT_LOAD(cublasLtMatmulPreferenceSetAttribute);
  LT_LOAD(cublasLtMatmulPreferenceDestroy);
  LT_LOAD(cublasLtGetStatusString);
#undef LT_LOAD
  cublasLtHandle_t handle = nullptr;

  Lt() { check(cublasLtCreate(&handle), "starting cuBLASLt"); }
  void check(cublasStatus_t status, const char* what) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      fail(ExitCode::internal, "{}: {}", what, cublasLtGetStatusString(status));
  }
};

const Lt& lt() {
  static const Lt* one = new Lt;  // lives as long as the process
  return *one;
}

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f64:
      return CUDA_R_64F;
    default:
      fail(ExitCode::internal, "matmul of {} on a GPU", dtype_name(t));
  }
}

/// What an address is a multiple of, up to 256: algorithms ask for it.
uint32_t alignment(const void* p) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  return at % 256 == 0 ? 256 : static_cast<uint32_t>(at & (~at + 1));
}

/// Everything that an algorithm depends on.
using Key =
    std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, bool, DType, DType, uint32_t, uint32_t, uint32_t>;

/// A product that is ready to run.
struct Product {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo;
};

Product make(int64_t m, int64_t n, int64_t k, DType in, DType out, bool trans_a, bool trans_b,
             const void* bias, uint32_t align_a, uint32_t align_b, uint32_t align_out) {
  const Lt& l = lt();
  Product p;
  const bool wide = in == DType::f64;
  const cudaDataType_t scale = wide ? CUDA_R_64F : CUDA_R_32F;
  l.check(l.cublasLtMatmulDescCreate(&p.op, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, scale), "matmul");
  const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
    l.check(l.cublasLtMatmulDescSetAttribute(p.op, what, &value, sizeof value), "matmul");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(out));
  }
  const auto layout = [&](cublasLtMatrixLayout_t* to, DType t, int64_t rows, int64_t cols) {
    l.check(l.cublasLtMatrixLayoutCreate(to, type_of(t), static_cast<uint64_t>(cols),
                                         static_cast<uint64_t>(rows), cols),
            "matmul");
  };
  layout(&p.left, in, trans_b ? n : k, trans_b ? k : n);
  layout(&p.right, in, trans_a ? k : m, trans_a ? m : k);
  layout(&p.result, out, m, n);
  cublasLtMatmulPreference_t preference = nullptr;
  l.check(l.cublasLtMatmulPreferenceCreate(&preference), "matmul");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    l.check(l.cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value), "matmul");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kScratchBytes));
  // In-place reductions of split products go through counters in an order of their own.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_out);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_out);
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  const cublasStatus_t status = l.cublasLtMatmulAlgoGetHeuristic(l.handle, p.op, p.left, p.right, p.result,
                                                                 p.result, preference, 1, &found, &count);
  l.cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    fail(ExitCode::internal, "cuBLASLt has no algorithm for a {} product of {} x {} x {} into {}: {}",
         dtype_name(in), m, n, k, dtype_name(out), l.cublasLtGetStatusString(status));
  p.algo = found.algo;
  return p;
}

}  // namespace
}  // namespace cuda

void matmul_cuda(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  using namespace cuda;
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  static std::mutex mutex;
  static std::map<Key, Product> products;
  const void* bias = args.bias.defined() ? args.bias.data : nullptr;
  const Key key{m,
                n,
                k,
                args.trans_a,
                args.trans_b,
                args.accumulate,
                bias != nullptr,
                a.dtype,
                out.dtype,
                alignment(a.data),
                alignment(b.data),
                alignment(out.data)};
  const Lt& l = lt();
  std::lock_guard lock(mutex);
  auto at = products.find(key);
  if (at == products.end())
    at = products
             .emplace(key, make(m, n, k, a.dtype, out.dtype, args.trans_a, args.trans_b, bias,
                                alignment(a.data), alignment(b.data), alignment(out.data)))
             .first;
  const Product& p = at->second;
  if (bias)
    l.check(l.cublasLtMatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
            "matmul");
  const double one = 1, zero = 0;
  const float one32 = 1, zero32 = 0;
  const bool wide = a.dtype == DType::f64;
  const void *alpha = wide ? static_cast<const void*>(&one) : &one32,
             *beta = args.accumulate ? alpha
                     : wide          ? static_cast<const void*>(&zero)
                                     : &zero32;
  l.check(l.cublasLtMatmul(l.handle, p.op, alpha, b.data, p.left, a.data, p.right, beta, out.data, p.result,
                           out.data, p.result, &p.algo, scratch(s, kScratchBytes),
                           static_cast<size_t>(kScratchBytes), native(s)),
          "matmul");
}

}  // namespace ltrain
