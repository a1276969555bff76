#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/norm/head_norm.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kHeadThreads = 128;

/// One block for each head of a row.
template <class T>
__global__ void norm(T* y, T* x, compute_t<T>* rstd, const T* w, int64_t count, int64_t cols, HeadNorm p) {
  using A = compute_t<T>;
  const A offset = A(p.weight_offset);
  for (int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    T* at = y + n / p.heads * cols + p.first + n % p.heads * p.width;
    A sum = 0;
    for (int64_t c = threadIdx.x; c < p.width; c += blockDim.x) sum += get(at, c) * get(at, c);
    sum = block_reduce(sum, Sum(), A(0), shared_memory<A>());
    const A r = 1 / sqrt(sum / static_cast<A>(p.width) + static_cast<A>(p.eps));
    if (x && threadIdx.x == 0) rstd[n] = r;
    for (int64_t c = threadIdx.x; c < p.width; c += blockDim.x) {
      if (x) x[n * p.width + c] = at[c];
      put(at, c, get(at, c) * r * (get(w, c) + offset));
    }
  }
}

/// Term of head n of all rows in the gradient of the weight.
template <class T>
struct HeadWeightTerm {
  const T *dy, *x;
  const compute_t<T>* rstd;
  int64_t cols;
  HeadNorm p;
  __device__ compute_t<T> operator()(int64_t n, int64_t c) const {
    return get(dy, n / p.heads * cols + p.first + n % p.heads * p.width + c) * get(x, n * p.width + c) *
           rstd[n];
  }
};

template <class T>
__global__ void head_norm_backward(T* dy, const T* x, const compute_t<T>* rstd, const T* w, int64_t count,
                                   int64_t cols, HeadNorm p) {
  using A = compute_t<T>;
  const A offset = A(p.weight_offset);
  for (int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    T* d = dy + n / p.heads * cols + p.first + n % p.heads * p.width;
    const T* v = x + n * p.width;
    const A r = rstd[n];
    A dot = 0;
    for (int64_t c = threadIdx.x; c < p.width; c += blockDim.x)
      dot += get(d, c) * (get(w, c) + offset) * get(v, c);
    dot = block_reduce(dot, Sum(), A(0), shared_memory<A>()) * r * r * r / static_cast<A>(p.width);
    for (int64_t c = threadIdx.x; c < p.width; c += blockDim.x)
      put(d, c, get(d, c) * (get(w, c) + offset) * r - get(v, c) * dot);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void head_norm_forward_cuda(Stream& s, DType t, void* y, void* x, void* rstd, const void* weight,
                            int64_t rows, int64_t cols, HeadNorm p) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(rows * p.heads, 1), kHeadThreads, kWarp * 8, cuda::norm<T>, static_cast<T*>(y),
           static_cast<T*>(x), static_cast<compute_t<T>*>(rstd), static_cast<const T*>(weight),
           rows * p.heads, cols, p);
  });
}

void head_norm_backward_cuda(Stream& s, DType t, void* dy, void* dweight, const void* x, const void* rstd,
                             const void* weight, int64_t rows, int64_t cols, HeadNorm p, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A* r = static_cast<const A*>(rstd);
    column_sums(s, static_cast<A*>(dweight),
                cuda::HeadWeightTerm<T>{static_cast<const T*>(dy), static_cast<const T*>(x), r, cols, p},
                rows * p.heads, p.width, accumulate);
    launch(s, blocks_for(rows * p.heads, 1), kHeadThreads, kWarp * 8, cuda::head_norm_backward<T>,
           static_cast<T*>(dy), static_cast<const T*>(x), r, static_cast<const T*>(weight), rows * p.heads,
           cols, p);
  });
}

}  // namespace ltrain
