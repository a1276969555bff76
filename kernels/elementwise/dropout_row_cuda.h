// Dropout inside the CUDA kernels that fuse it: the same numbers as dropout_row_cpu.h.
#pragma once
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/elementwise/dropout.h"

namespace ltrain::cuda {

/// 0 or 1/(1-p) for channel `col` of the full row.
inline __device__ float dropout_factor(const DropoutArgs& d, uint64_t call, int64_t col) {
  const Philox4 r = philox(d.seed, d.stream, call + static_cast<uint64_t>(col / 4));
  return r.v[col % 4] >= d.threshold ? d.scale : 0.0f;
}

/// f[j] = dropout_factor(d, call, col + j), with one Philox call for each four channels that begin at a
/// multiple of four.
template <int N, class A>
__device__ void dropout_factors(A* f, const DropoutArgs& d, uint64_t call, int64_t col) {
  if (N % 4 == 0 && col % 4 == 0) {
    for (int k = 0; k < N; k += 4) {
      const Philox4 r = philox(d.seed, d.stream, call + static_cast<uint64_t>((col + k) / 4));
      for (int j = k; j < k + 4 && j < N; ++j) f[j] = r.v[j - k] >= d.threshold ? A(d.scale) : A(0);
    }
  } else {
    for (int j = 0; j < N; ++j) f[j] = A(dropout_factor(d, call, col + j));
  }
}

}  // namespace ltrain::cuda
