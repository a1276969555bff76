#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/magnitude.h"
#include "kernels/elementwise/magnitude_row.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kRowThreads = 256;

/// Each block sums one row.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    squares_of_row(compute_t<T>* squares, const T* w, const T* v, int64_t cols) {
  using A = compute_t<T>;
  const int64_t first = int64_t{blockIdx.x} * cols;
  A before = 0, after = 0;
  for (int64_t c = int64_t{threadIdx.x} * N; c < cols; c += int64_t{kRowThreads} * N) {
    A x[N], y[N];
    load_values<N>(x, w, first + c);
    load_values<N>(y, v, first + c);
    for (int j = 0; j < N; ++j) {
      const A sum = x[j] + y[j];
      before += x[j] * x[j];
      after += sum * sum;
    }
  }
  before = block_reduce(before, Sum(), A(0), shared_memory<A>());
  after = block_reduce(after, Sum(), A(0), shared_memory<A>());
  if (threadIdx.x > 0) return;
  store_one(squares, 2 * int64_t{blockIdx.x}, before);
  store_one(squares, 2 * int64_t{blockIdx.x} + 1, after);
}

template <class T>
__global__ void factors_of_rows(compute_t<T>* factors, const compute_t<T>* squares, const T* change,
                                int64_t rows) {
  using A = compute_t<T>;
  const int64_t row = grid_thread();
  if (row >= rows) return;
  const A of[2] = {load_one(squares, 2 * row), load_one(squares, 2 * row + 1)};
  A made[2];
  write_magnitude_factors(made, of, static_cast<A>(get(change, row)));
  store_one(factors, 2 * row, made[0]);
  store_one(factors, 2 * row + 1, made[1]);
}

/// A block handles a run of packs of row blockIdx.x (RowGrid).
template <class T, int N>
__global__ void times_factors(T* y, const T* x, const compute_t<T>* factors, int64_t row_packs) {
  const int64_t cols = row_packs * N, col = row_pack() * N, at = blockIdx.x * cols + col;
  if (col >= cols) return;
  compute_t<T> v[N];
  load_values<N>(v, x, at);
  for (int j = 0; j < N; ++j) v[j] *= load_one(factors, 2 * (col + j));
  store_values<N>(y, at, v);
}

template <class T, int N>
struct ScaledProducts {
  const T *a, *b;
  const compute_t<T>* factors;
  int64_t cols;
  __device__ void operator()(compute_t<T>* v, int64_t row, int64_t col) const {
    compute_t<T> more[N];
    load_values<N>(v, a, row * cols + col);
    load_values<N>(more, b, row * cols + col);
    for (int j = 0; j < N; ++j) v[j] *= more[j] * load_one(factors, 2 * (col + j) + 1);
  }
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void row_squares_cuda(Stream& s, DType t, void* squares, const void* w, const void* v, int64_t rows,
                      int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {w, v}, [&]<int N>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kRowThreads,
             kWarp * static_cast<int64_t>(sizeof(compute_t<T>)), squares_of_row<T, N>,
             static_cast<compute_t<T>*>(squares), static_cast<const T*>(w), static_cast<const T*>(v), cols);
    });
  });
}

void magnitude_factors_cuda(Stream& s, DType t, void* factors, const void* squares, const void* change,
                            int64_t rows) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(rows, kRowThreads), kRowThreads, 0, factors_of_rows<T>,
           static_cast<compute_t<T>*>(factors), static_cast<const compute_t<T>*>(squares),
           static_cast<const T*>(change), rows);
  });
}

void scale_columns_cuda(Stream& s, DType t, void* y, const void* x, const void* factors, int64_t rows,
                        int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, x}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, times_factors<T, N>, static_cast<T*>(y), static_cast<const T*>(x),
             static_cast<const compute_t<T>*>(factors), cols / N);
    });
  });
}

void magnitude_gradient_cuda(Stream& s, DType t, void* out, const void* a, const void* b, const void* factors,
                             int64_t rows, int64_t cols, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {a, b}, [&]<int N>() {
      column_sums<N>(s, static_cast<compute_t<T>*>(out),
                     ScaledProducts<T, N>{static_cast<const T*>(a), static_cast<const T*>(b),
                                          static_cast<const compute_t<T>*>(factors), cols},
                     rows, cols, accumulate);
    });
  });
}

}  // namespace ltrain
