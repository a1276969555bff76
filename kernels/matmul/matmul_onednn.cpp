// Choice of the bf16 matmul on a CPU, and AMX matmuls through oneDNN's matmul primitive.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <tuple>

#include "base/cpu_isa.h"
#include "kernels/matmul/matmul.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain {
namespace {

// m, n, k, row stride of out; trans_a, trans_b, accumulate, bias; dtype in, out; threads (a primitive is
// built for a number of them).
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

/// CPU features for bf16: AVX512_BF16, AMX_BF16; `intel`: vendor is Intel.
struct CpuBf16 {
  bool avx512 = false, amx = false, intel = false;
};

CpuBf16 cpu_bf16() {
  CpuBf16 cpu;
#if defined(__x86_64__) && !defined(LTRAIN_ONE_ISA)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  cpu.avx512 =
      cpu_isa() == CpuIsa::avx512 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & (1u << 5));
  cpu.amx = cpu.avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & (1u << 22));
  unsigned vendor[3];
  __get_cpuid(0, &eax, &vendor[0], &vendor[2], &vendor[1]);
  cpu.intel = std::memcmp(vendor, "GenuineIntel", 12) == 0;
#endif
  return cpu;
}

Bf16Matmul choose_bf16_matmul() {
  const CpuBf16 cpu = cpu_bf16();
  if (const char* asked = std::getenv("LTRAIN_BF16_MATMUL"); asked && *asked) {
    const std::string_view way = asked;
    if (way == "widen") return Bf16Matmul::widen;
    if (way != "pairs" && way != "onednn")
      fail(ExitCode::usage, "LTRAIN_BF16_MATMUL={}: must be widen, pairs or onednn", way);
    if (!cpu.avx512)
      fail(ExitCode::usage, "LTRAIN_BF16_MATMUL={}: this CPU has no AVX512_BF16{}; widen works everywhere",
           way, std::string_view(cpu_isa_name()) == "avx512" ? "" : ", or LTRAIN_ISA leaves it out");
    return way == "pairs" ? Bf16Matmul::pairs : Bf16Matmul::onednn;
  }
  if (cpu.amx) return Bf16Matmul::onednn;
  // Without AMX, Intel's VDPBF16PS runs at half the rate of two f32 FMAs (measured: 195 against 370 GFLOP/s
  // on two Emerald Rapids cores); on AMD's Zen 4 and 5 it runs at twice the rate.
  return cpu.avx512 && !cpu.intel ? Bf16Matmul::pairs : Bf16Matmul::widen;
}

}  // namespace

Bf16Matmul bf16_matmul() {
  static const Bf16Matmul choice = choose_bf16_matmul();
  return choice;
}

void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[args.trans_a ? 0 : 1];
  run({m, n, k, n, args.trans_a, args.trans_b, args.accumulate, args.bias.defined(), a.dtype, out.dtype,
       omp_get_max_threads()},
      a.data, b.data, args.bias.data, out.data);
}

}  // namespace ltrain
