#include "kernels/norm/norm_cut.h"
#include "kernels/norm/norm_weight_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// One block for each row.
template <class T>
__global__ void norm_moments(NormShape shape, compute_t<T>* moments, const T* x) {
  using A = compute_t<T>;
  A* scratch = shared_memory<A>();
  const int64_t C = shape.cols, row = blockIdx.x;
  const bool layer = shape.kind == NormKind::layer;
  const T* xr = x + row * C;
  A m = 0, squares = 0;
  if (layer) {
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) m += get(xr, c);
    m = block_reduce(m, Sum(), A(0), scratch) / C;
  }
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A v = get(xr, c) - m;
    squares += v * v;
  }
  squares = block_reduce(squares, Sum(), A(0), scratch);
  if (threadIdx.x != 0) return;
  if (layer) moments[2 * row] = m;
  moments[layer ? 2 * row + 1 : row] = squares;
}

template <class T>
__global__ void norm_apply(NormShape shape, int ranks, T* y, compute_t<T>* mean, compute_t<T>* rstd,
                           const T* x, const compute_t<T>* moments, const T* weight, const T* bias) {
  using A = compute_t<T>;
  const int64_t C = shape.cols, rows = shape.rows, row = blockIdx.x;
  const A offset = A(shape.weight_offset);
  const bool layer = shape.kind == NormKind::layer;
  A m = 0, squares = 0;  // all threads, in the same order
  if (layer) {
    for (int r = 0; r < ranks; ++r) m += moments[2 * (r * rows + row)];
    m /= ranks;
  }
  for (int r = 0; r < ranks; ++r) {
    const A* of = moments + (layer ? 2 : 1) * (r * rows + row);
    squares += layer ? of[1] + (of[0] - m) * (of[0] - m) * C : of[0];
  }
  const A scale = A(1) / sqrt(squares / (C * ranks) + A(shape.eps));
  if (threadIdx.x == 0) {
    rstd[row] = scale;
    if (layer) mean[row] = m;
  }
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A v = (get(x, row * C + c) - m) * scale * (get(weight, c) + offset);
    put(y, row * C + c, bias ? v + get(bias, c) : v);
  }
}

template <class T>
__global__ void norm_cut_dots(NormShape shape, compute_t<T>* dots, const T* dy, const T* x, const T* weight,
                              const compute_t<T>* mean, const compute_t<T>* rstd) {
  using A = compute_t<T>;
  A* scratch = shared_memory<A>();
  const int64_t C = shape.cols, row = blockIdx.x;
  const A offset = A(shape.weight_offset);
  const A r = rstd[row], m = mean ? mean[row] : A(0);
  A dot = 0, total = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A dhat = get(dy, row * C + c) * (get(weight, c) + offset);
    dot += dhat * (get(x, row * C + c) - m) * r;
    total += dhat;
  }
  dot = block_reduce(dot, Sum(), A(0), scratch);
  total = block_reduce(total, Sum(), A(0), scratch);
  if (threadIdx.x != 0) return;
  dots[mean ? 2 * row : row] = dot;
  if (mean) dots[2 * row + 1] = total;
}

template <class T>
__global__ void norm_cut_backward(NormShape shape, int64_t all_cols, T* dx, const T* dy, const T* x,
                                  const T* weight, const compute_t<T>* mean, const compute_t<T>* rstd,
                                  const compute_t<T>* dots) {
  using A = compute_t<T>;
  const int64_t C = shape.cols, row = blockIdx.x;
  const A offset = A(shape.weight_offset);
  const A r = rstd[row], m = mean ? mean[row] : A(0);
  const A dot = dots[mean ? 2 * row : row] / all_cols, total = mean ? dots[2 * row + 1] / all_cols : A(0);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const int64_t at = row * C + c;
    const A hat = (get(x, at) - m) * r, g = (get(dy, at) * (get(weight, c) + offset) - total - hat * dot) * r;
    put(dx, at, shape.first ? g : get(dx, at) + g);
  }
}

dim3 row_blocks(const NormShape& shape) { return dim3(static_cast<unsigned>(shape.rows)); }

/// Null for a norm without a mean.
template <class A>
const A* mean_of(const NormShape& shape, const void* mean) {
  return shape.kind == NormKind::layer ? static_cast<const A*>(mean) : nullptr;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void norm_moments_cuda(Stream& s, DType t, NormShape shape, void* moments, const void* x) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    launch(s, row_blocks(shape), kThreads, kWarp * sizeof(A), cuda::norm_moments<T>, shape,
           static_cast<A*>(moments), static_cast<const T*>(x));
  });
}

void norm_apply_cuda(Stream& s, DType t, NormShape shape, int ranks, void* y, void* mean, void* rstd,
                     const void* x, const void* moments, const void* weight, const void* bias) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    launch(s, row_blocks(shape), kThreads, 0, cuda::norm_apply<T>, shape, ranks, static_cast<T*>(y),
           static_cast<A*>(mean), static_cast<A*>(rstd), static_cast<const T*>(x),
           static_cast<const A*>(moments), static_cast<const T*>(weight), static_cast<const T*>(bias));
  });
}

void norm_cut_dots_cuda(Stream& s, DType t, NormShape shape, void* dots, void* dweight, void* dbias,
                        const void* dy, const void* x, const void* weight, const void* mean,
                        const void* rstd) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const T *dyt = static_cast<const T*>(dy), *xt = static_cast<const T*>(x);
    const A *m = mean_of<A>(shape, mean), *r = static_cast<const A*>(rstd);
    launch(s, row_blocks(shape), kThreads, kWarp * sizeof(A), cuda::norm_cut_dots<T>, shape,
           static_cast<A*>(dots), dyt, xt, static_cast<const T*>(weight), m, r);
    norm_weight_gradients(s, static_cast<A*>(dweight), static_cast<A*>(dbias), dyt, xt, m, r, shape);
  });
}

void norm_cut_backward_cuda(Stream& s, DType t, NormShape shape, int64_t all_cols, void* dx, const void* dy,
                            const void* x, const void* weight, const void* mean, const void* rstd,
                            const void* dots) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    launch(s, row_blocks(shape), kThreads, 0, cuda::norm_cut_backward<T>, shape, all_cols,
           static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(x),
           static_cast<const T*>(weight), mean_of<A>(shape, mean), static_cast<const A*>(rstd),
           static_cast<const A*>(dots));
  });
}

}  // namespace ltrain
