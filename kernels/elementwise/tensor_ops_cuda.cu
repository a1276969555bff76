#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSquareBlocks = 512;  // partial sums of sum_squares, whatever the card

template <class T, class F, int N>
__global__ void cast(T* out, const F* in, int64_t packs) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const auto x = load<F, N>(in, i * N);
    Pack<T, N> y;
    for (int j = 0; j < N; ++j) put(y.v, j, static_cast<compute_t<T>>(get(x.v, j)));
    store(out, i * N, y);
  }
}

/// y[i] += x[i mod cols]: a whole tensor, or a vector for every row.
template <class T, int N>
__global__ void add(T* y, const T* x, int64_t packs, int64_t row_packs) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto to = load<T, N>(y, i * N);
    const auto from = load<T, N>(x, (i % row_packs) * N);
    for (int j = 0; j < N; ++j) put(to.v, j, get(to.v, j) + get(from.v, j));
    store(y, i * N, to);
  }
}

template <class T, int N>
__global__ void scale_by(T* y, compute_t<T> factor, int64_t packs) {
  Pack<T, 1> rounded;
  put(rounded.v, 0, factor);
  const compute_t<T> by = get(rounded.v, 0);
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto to = load<T, N>(y, i * N);
    for (int j = 0; j < N; ++j) put(to.v, j, get(to.v, j) * by);
    store(y, i * N, to);
  }
}

template <class T>
__global__ void sum_squares(double* partial, const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const double v = static_cast<double>(get(x, i));
    sum += v * v;
  }
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_in_order(double* total, const double* partial, int count) {
  double sum = *total;
  for (int i = 0; i < count; ++i) sum += partial[i];
  *total = sum;
}

template <class T>
__global__ void fill_normal(T* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first, double mean,
                            double std) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    put(out, i,
        static_cast<compute_t<T>>(mean + std * normal_value(seed, stream, static_cast<uint64_t>(first + i))));
}

template <class T>
__global__ void fill_value(T* out, int64_t n, double value) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) put(out, i, static_cast<compute_t<T>>(value));
}

template <class T>
struct Element {
  const T* x;
  int64_t cols;
  __device__ compute_t<T> operator()(int64_t row, int64_t col) const { return get(x, row * cols + col); }
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void fill_zero_cuda(Stream& s, void* out, int64_t bytes) { fill_bytes(s, out, bytes); }

void cast_cuda(Stream& s, DType to, DType from, void* out, const void* in, int64_t n) {
  dispatch_float(from, [&]<class F>() {
    dispatch_float(to, [&]<class T>() {
      with_pack<T, F>(n, {out, in}, [&]<int N>() {
        launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::cast<T, F, N>, static_cast<T*>(out),
               static_cast<const F*>(in), n / N);
      });
    });
  });
}

void add_to_cuda(Stream& s, DType t, void* y, const void* x, int64_t n) { add_bias_cuda(s, t, y, x, 1, n); }

void scale_by_cuda(Stream& s, DType t, void* y, int64_t n, double factor) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(n, {y}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::scale_by<T, N>, static_cast<T*>(y),
             static_cast<compute_t<T>>(factor), n / N);
    });
  });
}

void add_bias_cuda(Stream& s, DType t, void* y, const void* bias, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, bias}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::add<T, N>, static_cast<T*>(y),
             static_cast<const T*>(bias), rows * cols / N, cols / N);
    });
  });
}

void sum_rows_cuda(Stream& s, DType t, void* out, const void* x, int64_t rows, int64_t cols,
                   bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    column_sums(s, static_cast<compute_t<T>*>(out), Element<T>{static_cast<const T*>(x), cols}, rows, cols,
                accumulate);
  });
}

void sum_squares_cuda(Stream& s, DType t, double* total, const void* x, int64_t n) {
  if (n == 0) return;
  double* partial = static_cast<double*>(scratch(s, kSquareBlocks * 8));
  const dim3 blocks = blocks_for(n, kThreads, kSquareBlocks);
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks, kThreads, kWarp * 8, cuda::sum_squares<T>, partial, static_cast<const T*>(x), n);
  });
  launch(s, dim3(1), 1, 0, cuda::add_in_order, total, static_cast<const double*>(partial),
         static_cast<int>(blocks.x));
}

void fill_normal_cuda(Stream& s, DType t, void* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first,
                      double mean, double std) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::fill_normal<T>, static_cast<T*>(out), n, seed,
           stream, first, mean, std);
  });
}

void fill_value_cuda(Stream& s, DType t, void* out, int64_t n, double value) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::fill_value<T>, static_cast<T*>(out), n, value);
  });
}

}  // namespace ltrain
