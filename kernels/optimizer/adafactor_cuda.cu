#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/adafactor.h"

namespace ltrain {
namespace cuda {
namespace {

/// Number of rows and columns that a part touches.
struct Extent {
  int64_t rows, cols;
};
Extent extent_of(const MatrixPart& p) {
  return {p.count == 0 ? 0 : (p.begin + p.count - 1) / p.cols - p.begin / p.cols + 1, p.cols};
}

/// One block for each row: the order of the sum depends on the shape alone.
template <class A>
__global__ void row_sums(double* sums, const A* g, MatrixPart p, int64_t rows, double scale) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t line = p.begin / p.cols + r;
    const int64_t first = line * p.cols > p.begin ? line * p.cols : p.begin;
    const int64_t end = (line + 1) * p.cols < p.begin + p.count ? (line + 1) * p.cols : p.begin + p.count;
    double sum = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) {
      const double v = scale * g[i - p.begin];
      sum += v * v;
    }
    sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
    if (threadIdx.x == 0) sums[p.first_row + line] += sum;
  }
}

template <class A>
__global__ void col_sums(double* sums, const A* g, MatrixPart p, double scale) {
  for (int64_t c = grid_thread(); c < p.cols; c += grid_stride()) {
    double sum = sums[p.first_col + c];
    for (int64_t i = (p.begin - c + p.cols - 1) / p.cols * p.cols + c; i < p.begin + p.count; i += p.cols) {
      if (i < p.begin) continue;
      const double v = scale * g[i - p.begin];
      sum += v * v;
    }
    sums[p.first_col + c] = sum;
  }
}

template <class A>
__global__ void moments_kernel(A* factors, const double* sums, int64_t rows, int64_t cols, double beta) {
  for (int64_t i = grid_thread(); i < rows + cols; i += grid_stride()) {
    const double now = sums[i] / static_cast<double>(i < rows ? cols : rows);
    factors[i] = static_cast<A>(beta * factors[i] + (1 - beta) * now);
  }
}

template <class A>
__global__ void row_mean(A* factors, int64_t rows, int64_t cols) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) sum += factors[i];
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) factors[rows + cols] = static_cast<A>(sum / static_cast<double>(rows));
}

template <class A>
__global__ void direction_kernel(A* g, const A* factors, MatrixPart p, int64_t rows, int64_t count, A scale,
                                 A eps) {
  const A least = eps * eps, mean = factors[count - 1] > eps ? factors[count - 1] : eps;
  for (int64_t i = grid_thread(); i < p.count; i += grid_stride()) {
    const A v = factors[p.row(i)] / mean * factors[rows + p.col(i)];
    g[i] = scale * g[i] / sqrt(v > least ? v : least);
  }
}

template <class A>
__global__ void plain_kernel(A* g, A* v, int64_t n, A beta, A one_minus, A scale, A least) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const A grad = scale * g[i];
    v[i] = beta * v[i] + one_minus * grad * grad;
    g[i] = grad / sqrt(v[i] > least ? v[i] : least);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void factor_sums_cuda(Stream& s, DType t, double* sums, const void* grad, MatrixPart part, int64_t rows,
                      double scale) {
  const Extent e = extent_of(part);
  if (e.rows == 0) return;
  dispatch_wide(t, [&]<class A>() {
    const A* g = static_cast<const A*>(grad);
    launch(s, dim3(static_cast<unsigned>(std::min<int64_t>(e.rows, 1 << 16))), kThreads, kWarp * 8,
           cuda::row_sums<A>, sums, g, part, e.rows, scale);
    launch(s, blocks_for(e.cols, kThreads), kThreads, 0, cuda::col_sums<A>, sums + rows, g, part, scale);
  });
}

void factor_moments_cuda(Stream& s, DType t, void* factors, const double* sums, int64_t rows, int64_t cols,
                         double beta) {
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks_for(rows + cols, kThreads), kThreads, 0, cuda::moments_kernel<A>,
           static_cast<A*>(factors), sums, rows, cols, beta);
    launch(s, dim3(1), kThreads, kWarp * 8, cuda::row_mean<A>, static_cast<A*>(factors), rows, cols);
  });
}

void factor_direction_cuda(Stream& s, DType t, void* grad, const void* factors, MatrixPart part, int64_t rows,
                           int64_t factor_count, double scale, double eps) {
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks_for(part.count, kThreads), kThreads, 0, cuda::direction_kernel<A>, static_cast<A*>(grad),
           static_cast<const A*>(factors), part, rows, factor_count, A(scale), A(eps));
  });
}

void plain_direction_cuda(Stream& s, DType t, void* grad, void* v, int64_t n, double beta, double scale,
                          double eps) {
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::plain_kernel<A>, static_cast<A*>(grad),
           static_cast<A*>(v), n, A(beta), A(1 - beta), A(scale), A(eps * eps));
  });
}

}  // namespace ltrain
