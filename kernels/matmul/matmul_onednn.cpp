// f32, bf16 and f16 products on the CPU through oneDNN's matmul primitive.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain {
namespace {

// m, n, k, row stride of out; trans_a, trans_b, accumulate, bias; dtype in, out; threads (a primitive is
// built for a number of them)
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, bool, bool, DType, DType, int>;

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::memory::data_type onednn_type(DType t) {
  switch (t) {
    case DType::f32:
      return dnnl::memory::data_type::f32;
    case DType::bf16:
      return dnnl::memory::data_type::bf16;
    default:
      fail(ExitCode::internal, "oneDNN matmul of {}", dtype_name(t));
  }
}

struct Primitive {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, bias, out;
};

Primitive build(const Key& key) {
  const auto [m, n, k, ldc, trans_a, trans_b, accumulate, bias, in_type, out_type, threads] = key;
  using desc = dnnl::memory::desc;
  using dims = dnnl::memory::dims;
  Primitive p;
  p.a = desc({m, k}, onednn_type(in_type), trans_a ? dims{1, m} : dims{k, 1});
  p.b = desc({k, n}, onednn_type(in_type), trans_b ? dims{1, k} : dims{n, 1});
  p.out = desc({m, n}, onednn_type(out_type), dims{ldc, 1});
  dnnl::primitive_attr attr;
  if (accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  if (bias) {
    p.bias = desc({1, n}, onednn_type(out_type), dims{n, 1});
    p.primitive = dnnl::matmul({{p.a, p.b, p.bias, p.out}, attr, engine()});
  } else {
    p.primitive = dnnl::matmul({{p.a, p.b, p.out}, attr, engine()});
  }
  return p;
}

void run(const Key& key, const void* a, const void* b, const void* bias, void* out) {
  thread_local std::map<Key, Primitive> cache;
  thread_local dnnl::stream stream(engine());
  try {
    auto it = cache.find(key);
    if (it == cache.end()) it = cache.emplace(key, build(key)).first;
    const Primitive& p = it->second;
    const auto memory = [](const dnnl::memory::desc& d, const void* data) {
      return dnnl::memory(d, engine(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, memory(p.a, a)},
                                                    {DNNL_ARG_WEIGHTS, memory(p.b, b)},
                                                    {DNNL_ARG_DST, memory(p.out, out)}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, memory(p.bias, bias));
    p.primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& e) {
    fail(ExitCode::internal, "oneDNN matmul m={} n={} k={}: {}", std::get<0>(key), std::get<1>(key),
         std::get<2>(key), e.what());
  }
}

/// Side of the panels that cut `size`: equal ones rather than a small last one.
int64_t widen_block(int64_t size) {
  const int64_t count = (size + kWidenBlock - 1) / kWidenBlock;
  return (size + count - 1) / count;
}

/// Fills a panel: rows [row, row + rows), columns [col, col + cols) of an operand as it lies.
using Panel = std::function<void(float* to, int64_t row, int64_t rows, int64_t col, int64_t cols)>;

/// Matmuls whose operands go through f32 panels of at most kWidenBlock squared: the same sums as f32
/// products of what `a` and `b` fill in.
void matmul_by_panels(Tensor out, int64_t k, const Panel& a, const Panel& b, const MatmulArgs& args) {
  const int64_t m = out.shape[0], n = out.shape[1];
  const int64_t mb = widen_block(m), nb = widen_block(n), kb = widen_block(k);
  const bool narrow = is_half(out.dtype);
  const DType t = out.dtype;
  LT_CHECK(!args.accumulate || !(narrow || args.bias.defined()), "a sum in {}{}", dtype_name(t),
           args.bias.defined() ? " with a bias" : "");
  const auto bytes = widen_panel_bytes(m, n, k, narrow);
  float* wide_a = static_cast<float*>(thread_scratch(0, bytes[0]));
  float* wide_b = static_cast<float*>(thread_scratch(1, bytes[1]));
  float* wide_c = narrow ? static_cast<float*>(thread_scratch(2, bytes[2])) : nullptr;
  for (int64_t j = 0; j < n; j += nb)
    for (int64_t i = 0; i < m; i += mb) {
      const int64_t rows = std::min(mb, m - i), cols = std::min(nb, n - j);
      for (int64_t l = 0; l < k; l += kb) {
        const int64_t depth = std::min(kb, k - l);
        args.trans_a ? a(wide_a, l, depth, i, rows) : a(wide_a, i, rows, l, depth);
        if (i == 0 || kb < k)  // otherwise the panel of the last row block still stands
          args.trans_b ? b(wide_b, j, cols, l, depth) : b(wide_b, l, depth, j, cols);
        float* c = narrow ? wide_c : out.ptr<float>() + i * n + j;
        const bool add = l > 0 || args.accumulate, bias = !narrow && !add && args.bias.defined();
        run({rows, cols, depth, narrow ? cols : n, args.trans_a, args.trans_b, add, bias, DType::f32,
             DType::f32, omp_get_max_threads()},
            wide_a, wide_b, bias ? args.bias.ptr<float>() + j : nullptr, c);
      }
      if (narrow) LT_CPU(narrow_panel_cpu)
      (t, static_cast<char*>(out.data) + (i * n + j) * 2, n, wide_c,
       args.bias.defined() ? static_cast<char*>(args.bias.data) + j * 2 : nullptr, rows, cols);
    }
}

/// The panels of a matrix of 16 bits.
Panel widened(const Tensor& x) {
  return [x](float* to, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    const int64_t stride = x.shape[1];
    LT_CPU(widen_panel_cpu)
    (x.dtype, to, static_cast<char*>(x.data) + (row * stride + col) * 2, rows, cols, stride);
  };
}

/// The panels of a matrix of f32, rounded to TF32.
Panel rounded(const Tensor& x) {
  return [x](float* to, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    LT_CPU(round_panel_cpu)(to, x.ptr<float>() + row * x.shape[1] + col, rows, cols, x.shape[1]);
  };
}

/// The panels of a matrix of 8 bits.
Panel widened(const Fp8Operand& x) {
  return [x](float* to, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    LT_CPU(dequantize_panel_cpu)(x, to, row, rows, col, cols);
  };
}

Bf16Matmul choose_bf16_matmul() {
  if (const char* asked = std::getenv("LTRAIN_BF16_MATMUL"); asked && *asked) {
    if (std::strcmp(asked, "native") == 0) return Bf16Matmul::native;
    if (std::strcmp(asked, "widen") == 0) return Bf16Matmul::widen;
    fail(ExitCode::usage, "LTRAIN_BF16_MATMUL={}: must be native or widen", asked);
  }
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & (1u << 5)))
    return Bf16Matmul::widen;  // AVX512_BF16
  __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
  if (edx & (1u << 22)) return Bf16Matmul::native;  // AMX_BF16
  // Without AMX, Intel's VDPBF16PS runs at half the rate of two f32 FMAs (measured: 195 against 370 GFLOP/s
  // on two Emerald Rapids cores); on AMD's Zen 4 it runs at twice.
  unsigned vendor[3];
  __get_cpuid(0, &eax, &vendor[0], &vendor[2], &vendor[1]);
  return std::memcmp(vendor, "GenuineIntel", 12) == 0 ? Bf16Matmul::widen : Bf16Matmul::native;
#else
  return Bf16Matmul::widen;
#endif
}

}  // namespace

std::array<int64_t, 3> widen_panel_bytes(int64_t m, int64_t n, int64_t k, bool half_result) {
  const int64_t mb = widen_block(m), nb = widen_block(n), kb = widen_block(k);
  return {mb * kb * 4, kb * nb * 4, half_result ? mb * nb * 4 : 0};
}

Bf16Matmul bf16_matmul() {
  static const Bf16Matmul choice = choose_bf16_matmul();
  return choice;
}

bool widens(DType t) { return t == DType::f16 || (t == DType::bf16 && bf16_matmul() == Bf16Matmul::widen); }

void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args, bool tf32) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  if (tf32 && a.dtype == DType::f32) return matmul_by_panels(out, k, rounded(a), rounded(b), args);
  if (widens(a.dtype)) return matmul_by_panels(out, k, widened(a), widened(b), args);
  run({m, n, k, n, args.trans_a, args.trans_b, args.accumulate, args.bias.defined(), a.dtype, out.dtype,
       omp_get_max_threads()},
      a.data, b.data, args.bias.data, out.data);
}

void matmul_fp8_onednn(Tensor out, const Fp8Operand& a, const Fp8Operand& b, const MatmulArgs& args) {
  matmul_by_panels(out, a.codes.shape[1], widened(a), widened(b), args);
}

}  // namespace ltrain
