#include "kernels/norm/norm_rows_cuda.h"
#include "kernels/norm/norm_weight_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

// Rows of any length, one element at a time. The row is read three times, twice from the caches.

template <class T>
__device__ void add_row(T* sum, const T* x, const T* delta, int64_t row, int64_t cols, const DropoutArgs& d) {
  using A = compute_t<T>;
  const uint64_t call = d.threshold ? d.call(row, cols) : 0;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const A factor = d.threshold ? A(dropout_factor(d, call, d.part * cols + c)) : A(1);
    put(sum, c, get(x, c) + get(delta, c) * factor);
  }
}

/// Norm of one row by one block: calls give(index, value) for each element of the result.
template <class T, class Give>
__device__ void norm_any_row(const NormShape& shape, T* sum, compute_t<T>* mean, compute_t<T>* rstd,
                             const T* x, const T* delta, const T* weight, const T* bias,
                             const DropoutArgs& dropout, int64_t row, Give&& give) {
  using A = compute_t<T>;
  A* scratch = shared_memory<A>();
  const int64_t C = shape.cols;
  const A offset = A(shape.weight_offset);
  const T* xr = x + row * C;
  if (delta) {
    add_row(sum + row * C, xr, delta + row * C, row, C, dropout);
    xr = sum + row * C;  // each thread reads what it wrote, rounded
  }
  A m = 0;
  if (shape.kind == NormKind::layer) {
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) m += get(xr, c);
    m = block_reduce(m, Sum(), A(0), scratch) / C;
  }
  A squares = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A v = get(xr, c) - m;
    squares += v * v;
  }
  squares = block_reduce(squares, Sum(), A(0), scratch);
  const A r = A(1) / sqrt(squares / C + A(shape.eps));
  if (threadIdx.x == 0) {
    rstd[row] = r;
    if (shape.kind == NormKind::layer) mean[row] = m;
  }
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A v = (get(xr, c) - m) * r * (get(weight, c) + offset);
    give(row * C + c, bias ? v + get(bias, c) : v);
  }
}

/// One block for each row.
template <class T>
__global__ void norm_forward(NormShape shape, T* y, T* sum, compute_t<T>* mean, compute_t<T>* rstd,
                             const T* x, const T* delta, const T* weight, const T* bias,
                             DropoutArgs dropout) {
  norm_any_row(shape, sum, mean, rstd, x, delta, weight, bias, dropout, blockIdx.x,
               [&](int64_t at, compute_t<T> v) { put(y, at, v); });
}

/// One block for several rows.
template <class T>
__global__ void norm_forward_fp8(NormShape shape, NormCodes out, T* sum, compute_t<T>* mean,
                                 compute_t<T>* rstd, const T* x, const T* delta, const T* weight,
                                 const T* bias, DropoutArgs dropout) {
  const float inverse = 1.0f / *out.step;
  uint32_t most = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x)
    norm_any_row(shape, sum, mean, rstd, x, delta, weight, bias, dropout, row,
                 [&](int64_t at, compute_t<T> v) { store_rounded<T, 1>(out.codes, at, &v, inverse, most); });
  if (out.amax) keep_largest(out.amax, most, shared_memory<uint32_t>());
}

template <class T>
__global__ void residual_add(T* sum, const T* x, const T* delta, int64_t cols, DropoutArgs dropout) {
  const int64_t row = blockIdx.x;
  add_row(sum + row * cols, x + row * cols, delta + row * cols, row, cols, dropout);
}

template <class T>
__global__ void norm_backward(NormShape shape, T* dx, const T* dy, const T* x, const T* weight,
                              const compute_t<T>* mean, const compute_t<T>* rstd) {
  using A = compute_t<T>;
  A* scratch = shared_memory<A>();
  const int64_t C = shape.cols, row = blockIdx.x;
  const A offset = A(shape.weight_offset);
  const T *xr = x + row * C, *dyr = dy + row * C;
  const A r = rstd[row], m = shape.kind == NormKind::layer ? mean[row] : A(0);
  A dot = 0, total = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A dhat = get(dyr, c) * (get(weight, c) + offset);
    dot += dhat * (get(xr, c) - m) * r;
    total += dhat;
  }
  dot = block_reduce(dot, Sum(), A(0), scratch) / C;
  total = shape.kind == NormKind::layer ? block_reduce(total, Sum(), A(0), scratch) / C : A(0);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const A hat = (get(xr, c) - m) * r, d = (get(dyr, c) * (get(weight, c) + offset) - total - hat * dot) * r;
    put(dx, row * C + c, shape.first ? d : get(dx, row * C + c) + d);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void norm_forward_cuda(Stream& s, DType t, NormShape shape, void* y, void* sum, void* mean, void* rstd,
                       const void* x, const void* delta, const void* weight, const void* bias,
                       DropoutArgs dropout) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const NormForwardPointers<T> p(y, sum, mean, rstd, x, delta, weight, bias);
    if (norm_forward_in_registers(s, shape, p, dropout)) return;
    launch(s, dim3(static_cast<unsigned>(shape.rows)), kThreads, kWarp * sizeof(A), cuda::norm_forward<T>,
           shape, p.y, p.sum, p.mean, p.rstd, p.x, p.delta, p.weight, p.bias, dropout);
  });
}

void norm_forward_fp8_cuda(Stream& s, DType t, NormShape shape, void* codes, const float* step, float* amax,
                           void* sum, void* mean, void* rstd, const void* x, const void* delta,
                           const void* weight, const void* bias, DropoutArgs dropout) {
  if (shape.rows * shape.cols == 0) return;
  const unsigned blocks = static_cast<unsigned>(std::min(shape.rows, kMaxBlocks));
  const NormCodes out{static_cast<uint8_t*>(codes), step, amax};
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const NormForwardPointers<T> p(nullptr, sum, mean, rstd, x, delta, weight, bias);
    if (norm_forward_fp8_in_registers(s, shape, p, dropout, out, blocks)) return;
    launch(s, dim3(blocks), kThreads, kWarp * sizeof(A), cuda::norm_forward_fp8<T>, shape, out, p.sum, p.mean,
           p.rstd, p.x, p.delta, p.weight, p.bias, dropout);
  });
}

void residual_add_cuda(Stream& s, DType t, void* sum, const void* x, const void* delta, int64_t rows,
                       int64_t cols, DropoutArgs dropout) {
  dispatch_float(t, [&]<class T>() {
    T* to = static_cast<T*>(sum);
    const T *xt = static_cast<const T*>(x), *dt = static_cast<const T*>(delta);
    if (residual_add_packs(s, to, xt, dt, rows, cols, dropout)) return;
    launch(s, dim3(static_cast<unsigned>(rows)), kThreads, 0, cuda::residual_add<T>, to, xt, dt, cols,
           dropout);
  });
}

void norm_backward_cuda(Stream& s, DType t, NormShape shape, void* dx, void* dweight, void* dbias,
                        const void* dy, const void* x, const void* weight, const void* mean,
                        const void* rstd) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A* m = shape.kind == NormKind::layer ? static_cast<const A*>(mean) : nullptr;
    const NormBackwardPointers<T> p{static_cast<T*>(dx),
                                    static_cast<A*>(dweight),
                                    static_cast<A*>(dbias),
                                    static_cast<const T*>(dy),
                                    static_cast<const T*>(x),
                                    static_cast<const T*>(weight),
                                    m,
                                    static_cast<const A*>(rstd)};
    if (norm_backward_in_registers(s, shape, p)) return;
    launch(s, dim3(static_cast<unsigned>(shape.rows)), kThreads, kWarp * sizeof(A), cuda::norm_backward<T>,
           shape, p.dx, p.dy, p.x, p.weight, p.mean, p.rstd);
    norm_weight_gradients(s, p.dweight, p.dbias, p.dy, p.x, p.mean, p.rstd, shape);
  });
}

}  // namespace ltrain
