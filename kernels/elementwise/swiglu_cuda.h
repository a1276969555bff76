// SwiGLU of a gate and an up element, and the gradients, for kernels.
#pragma once
#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/tensor/dtype.h"

namespace ltrain::cuda {

/// SwiGLU for elements of type T.
template <class T>
struct Swiglu {
  using A = compute_t<T>;
  A gate, up, share;
  __device__ Swiglu(A g, A u) : gate(g), up(u), share(sigmoid_for<T>(g)) {}
  __device__ A value() const { return gate * share * up; }
  // Both begin with dy * share, which is then computed once.
  __device__ A to_gate(A dy) const { return dy * share * up * (A(1) + gate * (A(1) - share)); }
  __device__ A to_up(A dy) const { return dy * share * gate; }
};

}  // namespace ltrain::cuda
