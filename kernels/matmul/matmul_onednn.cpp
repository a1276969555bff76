// bf16 products by a CPU's own instructions, through oneDNN's matmul primitive.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "kernels/matmul/matmul.h"
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

Bf16Matmul bf16_matmul() {
  static const Bf16Matmul choice = choose_bf16_matmul();
  return choice;
}

bool widens(DType t) { return t == DType::f16 || (t == DType::bf16 && bf16_matmul() == Bf16Matmul::widen); }

void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  run({m, n, k, n, args.trans_a, args.trans_b, args.accumulate, args.bias.defined(), a.dtype, out.dtype,
       omp_get_max_threads()},
      a.data, b.data, args.bias.data, out.data);
}

}  // namespace ltrain
