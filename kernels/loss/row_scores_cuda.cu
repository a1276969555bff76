#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/row_scores.h"

namespace ltrain {
namespace cuda {
namespace {

/// Each block has one row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    scores_of_rows(double* values, const T* x, const T* weight, const int32_t* targets, int64_t cols) {
  using A = compute_t<T>;
  const int64_t row = blockIdx.x;
  if (targets[row] < 0) {
    if (threadIdx.x == 0) values[row] = 0;
    return;
  }
  A sum = 0;
  for (int64_t c = int64_t{threadIdx.x} * N; c < cols; c += int64_t{kThreads} * N) {
    A of[N], by[N];
    load_values<N>(of, x, row * cols + c);
    load_values<N>(by, weight, c);
    for (int j = 0; j < N; ++j) sum += of[j] * by[j];
  }
  sum = block_reduce(sum, Sum(), A(0), shared_memory<A>());
  if (threadIdx.x == 0) values[row] = static_cast<double>(sum);
}

/// A block handles a run of packs of row blockIdx.x (RowGrid).
template <class T, int N>
__global__ void gradients_of_rows(T* dx, const T* weight, const int32_t* targets, GradientScale scale,
                                  int64_t row_packs) {
  using A = compute_t<T>;
  const int64_t cols = row_packs * N, col = row_pack() * N, row = blockIdx.x;
  if (col >= cols) return;
  A v[N] = {};
  if (targets[row] >= 0) {
    const A g = static_cast<A>(-scale.get(row));
    load_values<N>(v, weight, col);
    for (int j = 0; j < N; ++j) v[j] *= g;
  }
  store_values<N>(dx, row * cols + col, v);
}

template <class T, int N>
struct ScoredRows {
  const T* x;
  const int32_t* targets;
  GradientScale scale;
  int64_t cols;
  __device__ void operator()(compute_t<T>* v, int64_t row, int64_t col) const {
    for (int j = 0; j < N; ++j) v[j] = 0;
    if (targets[row] < 0) return;
    load_values<N>(v, x, row * cols + col);
    const compute_t<T> g = static_cast<compute_t<T>>(-scale.get(row));
    for (int j = 0; j < N; ++j) v[j] *= g;
  }
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void row_scores_cuda(Stream& s, DType t, double* values, const void* x, const void* weight,
                     const int32_t* targets, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {x, weight}, [&]<int N>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads,
             kWarp * static_cast<int64_t>(sizeof(compute_t<T>)), scores_of_rows<T, N>, values,
             static_cast<const T*>(x), static_cast<const T*>(weight), targets, cols);
    });
  });
}

void row_scores_backward_cuda(Stream& s, DType t, void* dx, const void* weight, const int32_t* targets,
                              GradientScale scale, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {dx, weight}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, gradients_of_rows<T, N>, static_cast<T*>(dx),
             static_cast<const T*>(weight), targets, scale, cols / N);
    });
  });
}

void row_scores_weight_cuda(Stream& s, DType t, void* dweight, const void* x, const int32_t* targets,
                            GradientScale scale, int64_t rows, int64_t cols, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {x}, [&]<int N>() {
      column_sums<N>(s, static_cast<compute_t<T>*>(dweight),
                     ScoredRows<T, N>{static_cast<const T*>(x), targets, scale, cols}, rows, cols,
                     accumulate);
    });
  });
}

}  // namespace ltrain
