// Exclusive prefix sum over the threads of a block: the offset of each thread's part of a list.
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {
/// Returns the sum of `mine` over the threads before this one; `total`: the sum over all. counts: an element
/// of shared memory for each thread.
__device__ inline int64_t sum_before(int64_t mine, int64_t* counts, int64_t& total) {
  counts[threadIdx.x] = mine;
  __syncthreads();
  int64_t before = 0;
  total = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x); ++i) {
    if (i < static_cast<int>(threadIdx.x)) before += counts[i];
    total += counts[i];
  }
  __syncthreads();
  return before;
}

}  // namespace ltrain::cuda
