// Matmuls by cuBLASLt. Its matrices are column-major, ours row-major: out^T = op(b)^T op(a)^T, with each
// row-major matrix read as its column-major transpose.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/cache_folder.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/library.h"
#include "kernels/matmul/cublaslt_rules.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_choices.h"
#include "kernels/matmul/matmul_fp8.h"

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
  LT_LOAD(cublasLtGetVersion);
  LT_LOAD(cublasLtMatmulAlgoCheck);
  LT_LOAD(cublasLtMatmulAlgoConfigGetAttribute);
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
    case DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8e5m2:
      return CUDA_R_8F_E5M2;
    default:
      fail(ExitCode::internal, "matmul of {} on a GPU", dtype_name(t));
  }
}

/// Largest power of two up to 16 that divides an address: algorithms load at most 16 bytes at once. With a
/// larger limit, the offset of a tensor in its bucket would choose the algorithm, and with it the bits.
uint32_t alignment(const void* p) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  return at % 16 == 0 ? 16 : static_cast<uint32_t>(at & (~at + 1));
}

/// Everything that an algorithm depends on.
struct Key {
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate, bias, tf32;
  bool fast;  ///< FP8: sums keep the tensor cores' precision, narrower than f32, to the end
  DType a, b, out;
  uint32_t align_a, align_b, align_out;
  auto operator<=>(const Key&) const = default;
};

/// A matmul that is ready to run.
struct Product {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo;                           ///< algorithm to run
  std::vector<cublasLtMatmulHeuristicResult_t> found;  ///< the library's proposals, its first guess first
};

/// Name in the file of choices.
std::string name_of(const Key& k) {
  const std::string types = k.tf32       ? std::string("tf32")
                            : k.a == k.b ? std::string(dtype_name(k.a))
                                         : fmt::format("{}_{}", dtype_name(k.a), dtype_name(k.b));
  return fmt::format("{}-{}-{}-{}{}{}{}-{}{}-{}-{}-{}-{}", k.m, k.n, k.k, k.trans_a ? "t" : "n",
                     k.trans_b ? "t" : "n", k.accumulate ? "a" : "w", k.bias ? "b" : "n", types,
                     k.fast ? "_fast" : "", dtype_name(k.out), k.align_a, k.align_b, k.align_out);
}

/// Card, driver and library version for which a choice is valid.
std::string card_line() {
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  return fmt::format("{}, driver {}, cuBLASLt {}", device_info().name, driver, lt().cublasLtGetVersion());
}

Product make(const Key& key, const void* bias) {
  const auto [m, n, k, trans_a, trans_b, accumulate, with_bias, tf32, fast, a, b, out, align_a, align_b,
              align_out] = key;
  const Lt& l = lt();
  Product p;
  const bool wide = a == DType::f64;
  const cudaDataType_t scale = wide ? CUDA_R_64F : CUDA_R_32F;
  l.check(l.cublasLtMatmulDescCreate(&p.op,
                                     wide   ? CUBLAS_COMPUTE_64F
                                     : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F,
                                     scale),
          "matmul");
  const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
    l.check(l.cublasLtMatmulDescSetAttribute(p.op, what, &value, sizeof value), "matmul");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (fast) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
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
  layout(&p.left, b, trans_b ? n : k, trans_b ? k : n);
  layout(&p.right, a, trans_a ? k : m, trans_a ? m : k);
  layout(&p.result, out, m, n);
  cublasLtMatmulPreference_t preference = nullptr;
  l.check(l.cublasLtMatmulPreferenceCreate(&preference), "matmul");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    l.check(l.cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value), "matmul");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kScratchBytes));
  // In-place reductions of split matmuls use counters, and their order varies.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_out);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_out);
  constexpr int kProposals = 8;
  p.found.resize(measure_matmuls() ? kProposals : 1);
  int count = 0;
  const cublasStatus_t status =
      l.cublasLtMatmulAlgoGetHeuristic(l.handle, p.op, p.left, p.right, p.result, p.result, preference,
                                       static_cast<int>(p.found.size()), p.found.data(), &count);
  l.cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    fail(ExitCode::internal, "cuBLASLt has no algorithm for a {} product of {} x {} x {} into {}: {}",
         dtype_name(a), m, n, k, dtype_name(out), l.cublasLtGetStatusString(status));
  p.found.resize(static_cast<size_t>(count));
  p.algo = p.found.front().algo;
  return p;
}

/// Enqueues the matmul. `c` is added if `accumulate`, and may be `d`.
cublasStatus_t run(Stream& s, const Product& p, const cublasLtMatmulAlgo_t& algo, const void* a,
                   const void* b, const void* c, void* d, bool wide, bool accumulate) {
  static const double one = 1, zero = 0;
  static const float one32 = 1, zero32 = 0;
  const void *alpha = wide ? static_cast<const void*>(&one) : &one32,
             *beta = accumulate ? alpha
                     : wide     ? static_cast<const void*>(&zero)
                                : &zero32;
  return lt().cublasLtMatmul(lt().handle, p.op, alpha, b, p.left, a, p.right, beta, c, p.result, d, p.result,
                             &algo, scratch(s, kScratchBytes), static_cast<size_t>(kScratchBytes), native(s));
}

/// Time for which a candidate runs before it is timed, and for which it is timed. Large matmuls reach the
/// card's power limit, and its clock falls as in a training step; the fastest in a short burst may then be
/// slower than another (docs/measurements/h200_2026-11-27.md).
constexpr double kBusyMicroseconds = 50000, kTimedMicroseconds = 50000;

/// Microseconds of one matmul by `algo`, in the long run; infinity if it does not run.
double measure(Stream& s, const Product& p, const cublasLtMatmulAlgo_t& algo, const Tensor& a,
               const Tensor& b, const Tensor& out, bool accumulate) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda_check(cudaEventCreate(&begin), "timing a matmul");
  cuda_check(cudaEventCreate(&end), "timing a matmul");
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const auto runs_of = [&](int times) {  // microseconds of one of them
    float milliseconds = 0;
    cuda_check(cudaEventRecord(begin, native(s)), "timing a matmul");
    for (int i = 0; i < times && status == CUBLAS_STATUS_SUCCESS; ++i)
      status = run(s, p, algo, a.data, b.data, out.data, out.data, a.dtype == DType::f64, accumulate);
    cuda_check(cudaEventRecord(end, native(s)), "timing a matmul");
    cuda_check(cudaEventSynchronize(end), "timing a matmul");
    if (status == CUBLAS_STATUS_SUCCESS)
      cuda_check(cudaEventElapsedTime(&milliseconds, begin, end), "timing a matmul");
    return 1e3 * milliseconds / times;
  };
  const auto fill = [](double microseconds, double one) {
    return static_cast<int>(std::clamp(microseconds / std::max(one, 1.0), 3.0, 1000.0));
  };
  runs_of(1);  // loads the kernel
  double one = runs_of(2);
  runs_of(fill(kBusyMicroseconds, one));
  one = runs_of(fill(kTimedMicroseconds, one));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return status == CUBLAS_STATUS_SUCCESS ? one : std::numeric_limits<double>::infinity();
}

/// Chooses the algorithm that was fastest when this matmul was first met, here or in an earlier run: the
/// library's first guess unless another one takes kGain less time. All are timed on the real operands. A
/// matmul that accumulates is timed on its own output, which is restored from a copy;
/// without memory for the copy the first guess stays.
void choose(Stream& s, Product& p, const Key& key, const Tensor& a, const Tensor& b, const Tensor& out,
            bool accumulate) {
  static MatmulChoices* choices = new MatmulChoices(cache_folder(), card_line());
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(MatmulChoice::algorithm));
  const std::string name = name_of(key);
  const auto say = [&](const char* how, const MatmulChoice& c) {
    if (!std::getenv("LTRAIN_MATMUL_LOG")) return;
    fmt::print(stderr, "matmul {}: algorithm {}, {:.1f} us, {}{}{}\n", name, c.id, c.microseconds, how,
               choices->note().empty() ? "" : "; ", choices->note());
  };
  if (const MatmulChoice* known = choices->find(name)) {
    cublasLtMatmulAlgo_t algo;
    std::memcpy(&algo, known->algorithm.data(), sizeof algo);
    cublasLtMatmulHeuristicResult_t checked = {};
    if (lt().cublasLtMatmulAlgoCheck(lt().handle, p.op, p.left, p.right, p.result, p.result, &algo,
                                     &checked) == CUBLAS_STATUS_SUCCESS &&
        checked.workspaceSize <= static_cast<size_t>(kScratchBytes)) {
      p.algo = algo;
      return say("as measured before", *known);
    }
  }
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(native(s), &recording), "timing a matmul");
  if (recording != cudaStreamCaptureStatusNone) return;
  constexpr double kGain = 0.02;
  const auto size = static_cast<size_t>(out.bytes());
  void* kept = nullptr;
  if (accumulate) {
    if (cudaMalloc(&kept, size) != cudaSuccess) {
      cudaGetLastError();  // clears the error
      return;
    }
    cuda_check(cudaMemcpyAsync(kept, out.data, size, cudaMemcpyDeviceToDevice, native(s)), "timing a matmul");
  }
  MatmulChoice best;
  best.microseconds = std::numeric_limits<double>::infinity();
  for (const cublasLtMatmulHeuristicResult_t& f : p.found) {
    if (f.state != CUBLAS_STATUS_SUCCESS) continue;
    const double time = measure(s, p, f.algo, a, b, out, accumulate);
    if (!(time < best.microseconds * (std::isfinite(best.microseconds) ? 1 - kGain : 1))) continue;
    best.microseconds = time;
    p.algo = f.algo;
    std::memcpy(best.algorithm.data(), &f.algo, sizeof f.algo);
    size_t written = 0;
    lt().cublasLtMatmulAlgoConfigGetAttribute(&f.algo, CUBLASLT_ALGO_CONFIG_ID, &best.id, sizeof best.id,
                                              &written);
  }
  if (accumulate) {
    cuda_check(cudaMemcpyAsync(out.data, kept, size, cudaMemcpyDeviceToDevice, native(s)), "timing a matmul");
    cuda_check(cudaStreamSynchronize(native(s)), "timing a matmul");
    cudaFree(kept);
  }
  if (best.microseconds == std::numeric_limits<double>::infinity()) return;
  choices->add(name, best);
  say(fmt::format("the fastest of {}", p.found.size()).c_str(), best);
}

}  // namespace
}  // namespace cuda

/// `step_a`, `step_b`: steps of FP8 operands on the device, else null.
static void multiply(Stream& s, Tensor out, Tensor a, Tensor b, const float* step_a, const float* step_b,
                     bool fast, const MatmulArgs& args) {
  using namespace cuda;
  check_cublaslt(out, a, b, step_a, step_b, args);
  static std::mutex mutex;
  static std::map<Key, Product> products;
  const void* bias = args.bias.defined() ? args.bias.data : nullptr;
  const Key key{out.shape[0],
                out.shape[1],
                a.shape[args.trans_a ? 0 : 1],
                args.trans_a,
                args.trans_b,
                args.accumulate,
                bias != nullptr,
                s.tf32 && a.dtype == DType::f32,
                fast,
                a.dtype,
                b.dtype,
                out.dtype,
                alignment(a.data),
                alignment(b.data),
                alignment(out.data)};
  const Lt& l = lt();
  std::lock_guard lock(mutex);
  auto at = products.find(key);
  const bool fresh = at == products.end();
  if (fresh) at = products.emplace(key, make(key, bias)).first;
  Product& p = at->second;
  const auto set = [&](cublasLtMatmulDescAttributes_t what, const void* pointer) {
    if (pointer) l.check(l.cublasLtMatmulDescSetAttribute(p.op, what, &pointer, sizeof pointer), "matmul");
  };
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, step_b);  // the library's A is our b
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, step_a);
  if (fresh && measure_matmuls()) choose(s, p, key, a, b, out, args.accumulate);
  l.check(run(s, p, p.algo, a.data, b.data, out.data, out.data, a.dtype == DType::f64, args.accumulate),
          "matmul");
}

void matmul_cuda(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  multiply(s, out, a, b, nullptr, nullptr, false, args);
}

void matmul_fp8_cuda(Stream& s, Tensor out, const Fp8Operand& a, const Fp8Operand& b,
                     const MatmulArgs& args) {
  const bool forward = !a.transposed && !b.transposed;  // gradients use codes of a transpose
  multiply(s, out, a.codes, b.codes, a.steps.ptr<float>(), b.steps.ptr<float>(), forward, args);
}

}  // namespace ltrain
