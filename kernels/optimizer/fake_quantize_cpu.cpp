#include "kernels/optimizer/fake_quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class X, class W, class T, WeightCodes C>
void quantize_group(X* out, const W* w, int64_t n) {
  W most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(w[i]));
  const W scale = quantized::scale_of<T>(most, C);
  for (int64_t i = 0; i < n; ++i)  // out may be w itself
    put(out, i, quantized::rounded<T>(quantized::code_of<C>(w[i], scale) * scale));
}

}  // namespace

void fake_quantize_cpu(DType to, DType type, void* out, const void* w, WeightCodes codes, int64_t group,
                       int64_t n) {
  dispatch_quantized(to, type, [&]<class X, class W, class T>() {
    dispatch_codes(codes, [&]<WeightCodes C>() {
      parallel_for(n / group, std::max<int64_t>(1, 16384 / group), [=](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g)
          quantize_group<X, W, T, C>(static_cast<X*>(out) + g * group, static_cast<const W*>(w) + g * group,
                                     group);
      });
    });
  });
}

}  // namespace ltrain::LT_ISA
