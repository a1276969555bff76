// The sum over the threads of a block before each: where its part of a list begins.
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {
/// Of a block's threads, each of which has counted consecutive things: the sum over those before this one;
/// `total`: of all. counts: an element of shared memory for each thread.
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
