#include "kernels/cuda/pack_cuda.h"
#include "kernels/norm/clip_qkv.h"

namespace ltrain {
namespace cuda {
namespace {

/// `v` with the rounding of T.
template <class T>
__device__ compute_t<T> rounded_to(compute_t<T> v) {
  T stored;
  put(&stored, 0, v);
  return get(&stored, 0);
}

template <class T, int P>
__global__ void clip_qkv(T* y, int64_t n, double limit) {
  using A = compute_t<T>;
  const A most = rounded_to<T>(A(limit));
  over_packs<P>(n, [&]<int N>(int64_t i) {
    A v[N];
    load_values<N>(v, y, i);
    for (int j = 0; j < N; ++j) v[j] = v[j] > most ? most : v[j] < -most ? -most : v[j];
    store_values<N>(y, i, v);
  });
}

template <class T>
__global__ void clip_heads(T* dy, const T* x, const compute_t<T>* rstd, const T* w, int64_t n, int64_t cols,
                           HeadNorm p, double limit) {
  using A = compute_t<T>;
  const A most = rounded_to<T>(A(limit)), offset = A(p.weight_offset);
  const int64_t width = p.heads * p.width;
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const A y = rounded_to<T>(get(x, i) * rstd[i / p.width] * (get(w, i % p.width) + offset));
    if (y > most || y < -most) put(dy, i / width * cols + p.first + i % width, A(0));
  }
}

template <class T>
__global__ void clip_values(T* dy, const T* y, int64_t n, int64_t cols, int64_t first, double limit) {
  using A = compute_t<T>;
  const A most = rounded_to<T>(A(limit));
  const int64_t width = cols - first;
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const int64_t at = i / width * cols + first + i % width;
    if (get(y, at) >= most || get(y, at) <= -most) put(dy, at, A(0));
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void clip_qkv_forward_cuda(Stream& s, DType t, void* y, int64_t n, double limit) {
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({y}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::clip_qkv<T, N>, static_cast<T*>(y), n, limit);
    });
  });
}

void clip_heads_backward_cuda(Stream& s, DType t, void* dy, const void* x, const void* rstd,
                              const void* weight, int64_t rows, int64_t cols, HeadNorm p, double limit) {
  dispatch_float(t, [&]<class T>() {
    const int64_t n = rows * p.heads * p.width;
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::clip_heads<T>, static_cast<T*>(dy),
           static_cast<const T*>(x), static_cast<const compute_t<T>*>(rstd), static_cast<const T*>(weight), n,
           cols, p, limit);
  });
}

void clip_values_backward_cuda(Stream& s, DType t, void* dy, const void* y, int64_t rows, int64_t cols,
                               int64_t first, double limit) {
  dispatch_float(t, [&]<class T>() {
    const int64_t n = rows * (cols - first);
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::clip_values<T>, static_cast<T*>(dy),
           static_cast<const T*>(y), n, cols, first, limit);
  });
}

}  // namespace ltrain
