// A row of SwiGLU and of its gradient, for plain or quantized output. Only for *_cpu.cpp files.
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

/// out[2 cols]: gradient of the input row of swiglu_row, whose result has the gradient dy. out may alias
/// gate.
template <class T>
void swiglu_gradient_row(T* out, const T* dy, const T* gate, int64_t cols) {
  using A = compute_t<T>;
  const T* up = gate + cols;
  T* dup = out + cols;
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const A g = get(gate, c), u = get(up, c), d = get(dy, c), sg = sigmoid(g);
    put(out, c, d * u * sg * (A(1) + g * (A(1) - sg)));
    put(dup, c, d * g * sg);
  }
}

}  // namespace
}  // namespace ltrain::LT_ISA
