// The kernel for Hopper against the one for all cards (grouped_gemm_check.h), and which of them makes a
// product.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/matmul/grouped_gemm.h"
#include "kernels/matmul/grouped_gemm_check.h"
#include "kernels/tensor/kernel_trial.h"

namespace ltrain {

using namespace cuda;

std::string compare_grouped_gemms(Stream& s, DType t) {
  // Tiles and parts, whole and not, and a group without rows.
  const GroupRows rows{70, 0, 133};
  constexpr int64_t kAll = 203, kGroups = 3, kN = 136, kK = 72;
  constexpr int64_t kBuffer = int64_t{1} << 18;
  char* const memory = static_cast<char*>(scratch(s, 6 * kBuffer));
  const auto tensor = [&](int i, DType type, Shape shape) {
    Tensor at;
    at.data = memory + i * kBuffer, at.dtype = type, at.shape = shape, at.device = DeviceKind::cuda;
    LT_CHECK(at.bytes() <= kBuffer, "{} bytes in a buffer of {}", at.bytes(), kBuffer);
    return at;
  };
  const Tensor x = tensor(0, t, {kAll, kK}), w = tensor(1, t, {kGroups, kN, kK}),
               dy = tensor(2, t, {kAll, kN});
  std::vector<uint16_t> bits(static_cast<size_t>(kBuffer / 2));
  for (const Tensor& to : {x, w, dy}) {
    uint32_t seed = static_cast<uint32_t>(to.elements());
    for (uint16_t& b : bits) {
      seed = seed * 1664525u + 1013904223u;
      const float v = static_cast<float>(seed >> 8) * (2.0f / (1 << 24)) - 1.0f;
      b = t == DType::bf16 ? bf16(v).bits : f16(v).bits;
    }
    s.copy(to.data, bits.data(), to.bytes());
    s.synchronize();
  }
  const auto values = [&](const Tensor& from) {
    std::vector<char> raw(static_cast<size_t>(from.bytes()));
    s.copy(raw.data(), from.data, from.bytes());
    s.synchronize();
    std::vector<float> v(static_cast<size_t>(from.elements()));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = from.dtype == DType::f32    ? reinterpret_cast<const float*>(raw.data())[i]
             : from.dtype == DType::bf16 ? get(reinterpret_cast<const bf16*>(raw.data()), i)
                                         : get(reinterpret_cast<const f16*>(raw.data()), i);
    return v;
  };
  const auto difference = [&](const char* what, GroupedOperands o) {
    std::vector<float> found[2];
    for (const bool hopper : {false, true}) {
      o.out.data = memory + (hopper ? 4 : 3) * kBuffer;
      hopper ? grouped_gemm_wgmma_cuda(s, o, rows) : grouped_gemm_mma_cuda(s, o, rows);
      found[hopper] = values(o.out);
    }
    float most = 0, largest = 0;
    for (size_t i = 0; i < found[0].size(); ++i) {
      const float d = std::fabs(found[0][i] - found[1][i]);
      most = std::max(most, d < INFINITY ? d : INFINITY);
      largest = std::max(largest, std::fabs(found[0][i]));
    }
    // Sums of another order, rounded to the type.
    const float bound = o.out.dtype == DType::f32 ? 1e-5f : t == DType::bf16 ? 1.0f / 256 : 1.0f / 2048;
    return most <= bound * largest && largest > 0
               ? std::string()
               : fmt::format("{} differs by {} where the largest is {}", what, most, largest);
  };
  std::string told =
      difference("x w^T", {GroupedProduct::forward, tensor(3, t, {kAll, kN}), x, w, kN, kK, false});
  if (told.empty())
    told =
        difference("dy w", {GroupedProduct::input_gradient, tensor(3, t, {kAll, kK}), dy, w, kN, kK, false});
  if (told.empty())
    told = difference("dy^T x", {GroupedProduct::weight_gradient, tensor(3, DType::f32, {kGroups, kN, kK}),
                                 dy, x, kN, kK, false});
  return told;
}

std::string grouped_wgmma_unusable(Stream& s, DType t, bool* news) {
  const auto compare = [t](Stream& stream) { return compare_grouped_gemms(stream, t); };
  std::string why =
      why_unusable(s, {{"experts", std::string(dtype_name(t))}, "the mma kernels", compare}, news);
  if (!why.empty() && grouped_gemm_is_forced())
    fail(ExitCode::usage,
         "LTRAIN_GROUPED_GEMM=wgmma: these kernels are not used, because {}; LTRAIN_GROUPED_GEMM=mma works",
         why);
  return why;
}

void grouped_gemm_cuda(Stream& s, const GroupedOperands& o, const GroupRows& rows, GroupedGemm kernel) {
  LT_CHECK(kernel != GroupedGemm::each, "a grouped product by no kernel");
  if (kernel == GroupedGemm::mma) return grouped_gemm_mma_cuda(s, o, rows);
  bool news = false;
  const std::string why = grouped_wgmma_unusable(s, o.a.dtype, &news);
  if (why.empty()) return grouped_gemm_wgmma_cuda(s, o, rows);
  if (news)  // the start of a run has said it otherwise
    fmt::print(stderr, "ltrain: products of experts in {}: the wgmma kernels are not used, because {}\n",
               dtype_name(o.a.dtype), why);
  grouped_gemm_mma_cuda(s, o, rows);
}

}  // namespace ltrain
