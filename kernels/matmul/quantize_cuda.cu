#include "kernels/cuda/kernel_cuda.h"
#include "kernels/matmul/quantize.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 512;  // partial results of a largest magnitude, whatever the card
constexpr int kTile = 32;            // elements along a side of what a block turns at once

__device__ uint32_t magnitude(float v) { return fp8::bits_of(v) & 0x7fffffffu; }

/// partial[block] = bits of the largest magnitude that the block sees.
template <class T>
__global__ void partial_max(uint32_t* partial, const T* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    most = Max()(most, magnitude(static_cast<float>(get(x, i))));
  most = block_reduce(most, Max(), 0u, shared_memory<uint32_t>());
  if (threadIdx.x == 0) partial[blockIdx.x] = most;
}

__global__ void raise(float* amax, const uint32_t* partial, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) most = Max()(most, partial[i]);
  most = block_reduce(most, Max(), 0u, shared_memory<uint32_t>());
  if (threadIdx.x == 0) *amax = fp8::float_of(Max()(most, fp8::bits_of(*amax)));
}

template <class E, class T>
__global__ void quantize(uint8_t* codes, const T* x, int64_t n, const float* step) {
  const float inverse = 1.0f / *step;
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    codes[i] = E::to(static_cast<float>(get(x, i)) * inverse);
}

/// A block turns one tile: reads rows and writes rows, through shared memory.
template <class E, class T>
__global__ void quantize_turned(uint8_t* codes, const T* x, int64_t rows, int64_t cols, int64_t across,
                                const float* step) {
  uint8_t* tile = shared_memory<uint8_t>();  // (kTile, kTile + 1)
  const float inverse = 1.0f / *step;
  const int64_t r0 = blockIdx.x / across * kTile, c0 = blockIdx.x % across * kTile;
  for (int i = threadIdx.x; i < kTile * kTile; i += blockDim.x) {
    const int64_t r = r0 + i / kTile, c = c0 + i % kTile;
    if (r < rows && c < cols)
      tile[(i / kTile) * (kTile + 1) + i % kTile] = E::to(static_cast<float>(get(x, r * cols + c)) * inverse);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile; i += blockDim.x) {
    const int64_t c = c0 + i / kTile, r = r0 + i % kTile;
    if (r < rows && c < cols) codes[c * rows + r] = tile[(i % kTile) * (kTile + 1) + i / kTile];
  }
}

/// A block for each element.
__global__ void update_steps(float* steps, float* amax, float* history, int64_t n, int64_t length,
                             Fp8StepArgs args) {
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    float* own = history + i * length;
    const float newest = length > 0 && !args.record ? own[0] : amax[i];
    float most = -INFINITY;  // of what is finite: the rest says nothing of the numbers to come
    for (int64_t end = length; end > 0; end -= kThreads) {  // from the oldest on
      const int64_t k = end - 1 - threadIdx.x;
      float v = newest;
      if (k >= 0) v = !args.record ? own[k] : k > 0 ? own[k - 1] : newest;
      __syncthreads();  // all have read before one writes
      if (k >= 0 && args.record) own[k] = v;
      if (k >= 0 && fp8::finite(v)) most = Max()(most, v);
    }
    most = block_reduce(most, Max(), -INFINITY, shared_memory<float>());
    if (threadIdx.x == 0) {
      if (length > 0 && args.record) amax[i] = 0;
      const bool all = length > 0 && !args.most_recent && fp8::finite(most);
      steps[i] = fp8::step_of(all ? most : newest, args.top[i % args.period], args.margin);
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void max_abs_cuda(Stream& s, DType t, float* amax, const void* x, int64_t n) {
  if (n == 0) return;
  const dim3 blocks = blocks_for(n, kThreads, kMaxBlocks);
  uint32_t* partial = static_cast<uint32_t*>(scratch(s, kMaxBlocks * 4));
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks, kThreads, kWarp * 4, cuda::partial_max<T>, partial, static_cast<const T*>(x), n);
  });
  launch(s, dim3(1), kThreads, kWarp * 4, cuda::raise, amax, static_cast<const uint32_t*>(partial),
         int64_t{blocks.x});
}

void quantize_cuda(Stream& s, DType to, DType from, void* codes, const void* x, int64_t rows, int64_t cols,
                   bool turn, const float* step, float* amax) {
  if (amax) max_abs_cuda(s, from, amax, x, rows * cols);
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      uint8_t* out = static_cast<uint8_t*>(codes);
      const T* in = static_cast<const T*>(x);
      if (!turn)
        return launch(s, blocks_for(rows * cols, kThreads), kThreads, 0, cuda::quantize<E, T>, out, in,
                      rows * cols, step);
      const int64_t down = (rows + kTile - 1) / kTile, across = (cols + kTile - 1) / kTile;
      launch(s, dim3(static_cast<unsigned>(down * across)), kThreads, kTile * (kTile + 1),
             cuda::quantize_turned<E, T>, out, in, rows, cols, across, step);
    });
  });
}

void update_fp8_steps_cuda(Stream& s, float* steps, float* amax, float* history, int64_t n, int64_t length,
                           Fp8StepArgs args) {
  launch(s, dim3(static_cast<unsigned>(std::min<int64_t>(n, 1 << 16))), kThreads, kWarp * 4,
         cuda::update_steps, steps, amax, history, n, length, args);
}

}  // namespace ltrain
