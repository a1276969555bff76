// A row of SwiGLU, for plain or quantized output. Only for *_cpu.cpp files.
#pragma once
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

template <class A>
inline A sigmoid(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}

/// out[cols] = silu(gate) * up. The input row is gate, then up.
template <class T>
void swiglu_row(T* __restrict out, const T* __restrict gate, int64_t cols) {
  using A = compute_t<T>;
  const T* up = gate + cols;
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const A g = get(gate, c);
    put(out, c, g * sigmoid(g) * get(up, c));
  }
}

}  // namespace
}  // namespace ltrain::LT_ISA
