// Soft-cap of scores and logits, cap * tanh(x / cap) (arXiv:2408.00118, section 2). Only for *_cuda.cu files;
// soft_cap_cpu.h is the CPU version.
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {

template <class A>
struct SoftCapped {
  A value, slope;
};

/// The slope 1 - tanh^2 is computed as 4e / (1 + e)^2, e = exp(-2 |x| / cap), which does not cancel near the
/// cap.
template <class A>
__device__ __forceinline__ SoftCapped<A> soft_cap(A x, A cap) {
  const A u = x / cap, e = exp(A(-2) * fabs(u)), sum = A(1) + e;
  return {cap * tanh(u), A(4) * e / (sum * sum)};
}

/// Soft-cap of x, or x without one.
template <bool kCap, class A>
__device__ __forceinline__ A capped(A x, A cap) {
  if constexpr (kCap) return cap * tanh(x / cap);
  return x;
}

/// Calls f<kCap>().
template <class F>
void with_cap(double soft_cap, F&& f) {
  soft_cap > 0 ? f.template operator()<true>() : f.template operator()<false>();
}

}  // namespace ltrain::cuda
