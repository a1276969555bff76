// Tools of CUDA kernels (*_cuda.cu): launches, reductions over warps and blocks, the stream's scratch.
//
// The same sources are compiled a second time as C++ with LTRAIN_CUDA_EMULATED, where blocks run one after
// another on the CPU (emulation_cuda.h). The results of kernels are thereby tested on machines without a GPU.
// Kernels therefore use only the names declared here, launch() instead of <<<>>>, and shared memory requested
// from launch().
#pragma once
#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/cuda/emulation_cuda.h"
#else
#include "kernels/cuda/device_cuda.h"
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/tensor/dtype.h"
#include "kernels/tensor/stream.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain::cuda {

constexpr int kWarp = 32;
constexpr int kThreads = 256;  ///< size of a block, where a kernel has no reason for another
constexpr unsigned kAllLanes = 0xffffffffu;

#ifndef LTRAIN_CUDA_EMULATED
/// The block's dynamic shared memory, of the size passed to launch(); 16-byte aligned.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
}

/// Runs `kernel` on a grid of blocks, each with `shared` bytes of shared memory. A grid without blocks is
/// skipped, because CUDA refuses it.
template <class... P, class... A>
void launch(Stream& s, dim3 grid, int threads, int64_t shared, void (*kernel)(P...), A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared > 48 << 10)
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of a kernel");
  kernel<<<grid, threads, static_cast<size_t>(shared), native(s)>>>(static_cast<P>(args)...);
  cuda_check(cudaGetLastError(), "launch of a kernel");
}
#endif

/// Blocks of `threads` for n elements; at most `most`, so that threads of large grids loop.
inline dim3 blocks_for(int64_t n, int threads, int64_t most = 1 << 16) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>((n + threads - 1) / threads, 1, most)));
}

/// First index of this thread in a grid-stride loop, and the stride.
inline __device__ int64_t grid_thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
inline __device__ int64_t grid_stride() { return int64_t{gridDim.x} * blockDim.x; }

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

/// Reduction over the lanes of a warp. Every lane gets the result, by the same tree.
template <class T, class F>
__device__ T warp_reduce(T v, F f) {
  for (int d = kWarp / 2; d > 0; d /= 2) v = f(v, __shfl_xor_sync(kAllLanes, v, d));
  return v;
}

/// Reduction over the threads of a block of full warps. Every thread gets the result. `scratch`: kWarp
/// elements of shared memory, free after the call.
template <class T, class F>
__device__ T block_reduce(T v, F f, T none, T* scratch) {
  v = warp_reduce(v, f);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  v = warp_reduce(lane < warps ? scratch[lane] : none, f);
  __syncthreads();
  return v;
}

}  // namespace ltrain::cuda
