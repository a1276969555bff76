#include "kernels/attention/merge_attention.h"
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// One warp for each (row, head).
template <class T>
__global__ void merge(T* out, T* lse, const T* block_out, const T* block_lse, int64_t pairs, int64_t heads,
                      int64_t rows, int64_t head_dim) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t n = grid_thread() / kWarp; n < pairs; n += grid_stride() / kWarp) {
    const int64_t row = n / heads, h = n % heads, at = (row / rows * heads + h) * rows + row % rows;
    const T mine = lse[at], other = block_lse[at];
    if (other == -T(INFINITY)) continue;
    const T low = exp(-fabs(other - mine));  // ratio of the smaller sum to the larger
    const T weight = other > mine ? 1 / (1 + low) : low / (1 + low);
    for (int64_t c = lane; c < head_dim; c += kWarp)
      out[n * head_dim + c] -= weight * (out[n * head_dim + c] - block_out[n * head_dim + c]);
    __syncwarp();  // every lane has read lse before lane 0 writes it
    if (lane == 0) lse[at] = (mine > other ? mine : other) + log1p(low);
  }
}

}  // namespace
}  // namespace cuda

void merge_attention_cuda(Stream& s, DType t, void* out, void* lse, const void* block_out,
                          const void* block_lse, int64_t batch, int64_t heads, int64_t rows,
                          int64_t head_dim) {
  const auto run = [&]<class T>() {
    const int64_t pairs = batch * rows * heads;
    cuda::launch(s, cuda::blocks_for(pairs * cuda::kWarp, 256), 256, 0, cuda::merge<T>, static_cast<T*>(out),
                 static_cast<T*>(lse), static_cast<const T*>(block_out), static_cast<const T*>(block_lse),
                 pairs, heads, rows, head_dim);
  };
  if (t == DType::f64) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
}

}  // namespace ltrain
