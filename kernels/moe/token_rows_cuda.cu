#include "kernels/cuda/pack_cuda.h"
#include "kernels/moe/token_rows.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread for each pack of N channels, here and below.
template <class T, int N>
__global__ void permute(T* out, const T* x, TokenRows p, int64_t rows) {
  const int64_t packs = p.cols / N;
  for (int64_t i = grid_thread(); i < rows * packs; i += grid_stride()) {
    const int64_t row = i / packs, col = i % packs * N;
    store(out, row * p.cols + col, load<T, N>(x, p.sources[row] / p.top_k * p.cols + col));
  }
}

template <class T, int N>
__global__ void combine(T* y, const T* z, TokenRows p) {
  using A = compute_t<T>;
  const A* weights = static_cast<const A*>(p.weights);
  const int64_t packs = p.cols / N;
  for (int64_t i = grid_thread(); i < p.tokens * packs; i += grid_stride()) {
    A sum[N] = {};
    const int64_t token = i / packs, col = i % packs * N;
    for (int64_t a = token * p.top_k; a < (token + 1) * p.top_k; ++a) {
      const int64_t row = p.slots[a];
      if (row < 0) continue;
      const A weight = weights ? weights[a] : A(1);
      A v[N];
      load_values<N>(v, z, row * p.cols + col);
      for (int j = 0; j < N; ++j) sum[j] += weight * v[j];
    }
    store_values<N>(y, token * p.cols + col, sum);
  }
}

/// One warp for each assignment.
template <class T, int N>
__global__ void combine_backward(T* dz, compute_t<T>* dweights, const T* dy, const T* z, TokenRows p) {
  using A = compute_t<T>;
  const int lane = threadIdx.x % kWarp;
  for (int64_t a = grid_thread() / kWarp; a < p.tokens * p.top_k; a += grid_stride() / kWarp) {
    const int64_t row = p.slots[a];
    const A weight = static_cast<const A*>(p.weights)[a];
    A dot = 0;
    for (int64_t c = lane * N; row >= 0 && c < p.cols; c += kWarp * N) {
      A d[N], v[N];
      load_values<N>(d, dy, a / p.top_k * p.cols + c);
      load_values<N>(v, z, row * p.cols + c);
      for (int j = 0; j < N; ++j) {
        dot += d[j] * v[j];
        v[j] = weight * d[j];
      }
      store_values<N>(dz, row * p.cols + c, v);
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
    with_pack<T>(p.cols, {out, x}, [&]<int N>() {
      launch(s, blocks_for(rows * p.cols / N, kThreads), kThreads, 0, cuda::permute<T, N>,
             static_cast<T*>(out), static_cast<const T*>(x), p, rows);
    });
  });
}

void combine_rows_cuda(Stream& s, DType t, void* y, const void* z, TokenRows p) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(p.cols, {y, z}, [&]<int N>() {
      launch(s, blocks_for(p.tokens * p.cols / N, kThreads), kThreads, 0, cuda::combine<T, N>,
             static_cast<T*>(y), static_cast<const T*>(z), p);
    });
  });
}

void combine_rows_backward_cuda(Stream& s, DType t, void* dz, void* dweights, const void* dy, const void* z,
                                TokenRows p) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(p.cols, {dz, dy, z}, [&]<int N>() {
      launch(s, blocks_for(p.tokens * p.top_k * kWarp, kThreads), kThreads, 0, cuda::combine_backward<T, N>,
             static_cast<T*>(dz), static_cast<compute_t<T>*>(dweights), static_cast<const T*>(dy),
             static_cast<const T*>(z), p);
    });
  });
}

}  // namespace ltrain
