// Functions on the GPU's special function units, with errors of 2^-22 of the result beside the rounding of
// the argument. For results that are rounded to 16 bits, and for the exponentials of a softmax
// (docs/numerics.md).
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {

/// 2^x; subnormal results are zero.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

__device__ __forceinline__ float fast_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

constexpr float kLog2E = 1.4426950408889634f;

/// exp of a difference to the maximum, x <= 0.
__device__ __forceinline__ float exp_below(float x) { return fast_exp2(x * kLog2E); }
__device__ __forceinline__ double exp_below(double x) { return exp(x); }

/// 1 / sqrt(x).
__device__ __forceinline__ float inverse_root(float x) {
#ifdef __CUDA_ARCH__
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
#endif
}
__device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }

/// 1 / (1 + exp(-x)), for elements of type T.
template <class T>
__device__ __forceinline__ compute_t<T> sigmoid_for(compute_t<T> x) {
  if constexpr (is_half_v<T>) {
    return fast_reciprocal(1.0f + fast_exp2(-kLog2E * x));
  } else {
    return compute_t<T>(1) / (compute_t<T>(1) + exp(-x));
  }
}

}  // namespace ltrain::cuda
