#include "kernels/cuda/kernel_cuda.h"
#include "kernels/moe/token_rows.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void permute(T* out, const T* x, TokenRows p, int64_t rows) {
  for (int64_t i = grid_thread(); i < rows * p.cols; i += grid_stride())
    out[i] = x[p.sources[i / p.cols] / p.top_k * p.cols + i % p.cols];
}

template <class T>
__global__ void combine(T* y, const T* z, TokenRows p) {
  using A = compute_t<T>;
  const A* weights = static_cast<const A*>(p.weights);
  for (int64_t i = grid_thread(); i < p.tokens * p.cols; i += grid_stride()) {
    A sum = 0;
    const int64_t token = i / p.cols;
    for (int64_t a = token * p.top_k; a < (token + 1) * p.top_k; ++a)
      if (p.slots[a] >= 0) sum += (weights ? weights[a] : A(1)) * get(z, p.slots[a] * p.cols + i % p.cols);
    put(y, i, sum);
  }
}

/// A warp an assignment.
template <class T>
__global__ void combine_backward(T* dz, compute_t<T>* dweights, const T* dy, const T* z, TokenRows p) {
  using A = compute_t<T>;
  const int lane = threadIdx.x % kWarp;
  for (int64_t a = grid_thread() / kWarp; a < p.tokens * p.top_k; a += grid_stride() / kWarp) {
    const int64_t row = p.slots[a];
    A dot = 0;
    for (int64_t c = lane; row >= 0 && c < p.cols; c += kWarp) {
      const A d = get(dy, a / p.top_k * p.cols + c);
      dot += d * get(z, row * p.cols + c);
      put(dz, row * p.cols + c, static_cast<const A*>(p.weights)[a] * d);
    }
    dot = warp_reduce(dot, Sum());
    if (lane == 0) dweights[a] = dot;
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void permute_rows_cuda(Stream& s, DType t, void* out, const void* x, TokenRows p, int64_t rows) {
  if (rows == 0) return;
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(rows * p.cols, kThreads), kThreads, 0, cuda::permute<T>, static_cast<T*>(out),
           static_cast<const T*>(x), p, rows);
  });
}

void combine_rows_cuda(Stream& s, DType t, void* y, const void* z, TokenRows p) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(p.tokens * p.cols, kThreads), kThreads, 0, cuda::combine<T>, static_cast<T*>(y),
           static_cast<const T*>(z), p);
  });
}

void combine_rows_backward_cuda(Stream& s, DType t, void* dz, void* dweights, const void* dy, const void* z,
                                TokenRows p) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(p.tokens * p.top_k * kWarp, kThreads), kThreads, 0, cuda::combine_backward<T>,
           static_cast<T*>(dz), static_cast<compute_t<T>*>(dweights), static_cast<const T*>(dy),
           static_cast<const T*>(z), p);
  });
}

}  // namespace ltrain
