// Dropout inside the CUDA kernels that fuse it: the same numbers as dropout_row_cpu.h.
#pragma once
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/elementwise/dropout.h"

namespace ltrain::cuda {

/// 0 or 1/(1-p) for channel `col` of the whole row.
inline __device__ float dropout_factor(const DropoutArgs& d, uint64_t call, int64_t col) {
  const Philox4 r = philox(d.seed, d.stream, call + static_cast<uint64_t>(col / 4));
  return r.v[col % 4] >= d.threshold ? d.scale : 0.0f;
}

}  // namespace ltrain::cuda
