// A row of logits by a block of threads: sum of exponentials, loss and gradient.
#pragma once
#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/soft_cap_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kLogitThreads = 512;
/// Logits that a thread loads at once: 32 bytes of fp32, and 16 bytes of a 16-bit gradient. Chunks begin at
/// multiples of kChunk in the full matrix, so that rows of odd length also get 16-byte loads. The ends of a
/// row are handled one by one.
constexpr int kChunk = 8;

/// A running maximum and the sum of exponentials relative to it.
template <class T>
struct TopSum {
  T top = -T(INFINITY), sum = 0;

  /// Adds N values.
  template <int N>
  __device__ __forceinline__ void add(const T* x) {
    T most = x[0];
    for (int j = 1; j < N; ++j) most = Max()(most, x[j]);
    if (most > top) {
      sum *= exp_below(top - most);
      top = most;
    }
    if (top == -T(INFINITY)) return;  // avoids the difference of two infinities
    for (int j = 0; j < N; ++j) sum += exp_below(x[j] - top);
  }
};

/// A row of a matrix and its chunks: columns [begin, end) in chunks of N, the other columns one by one.
template <int N>
struct RowChunks {
  int64_t first, begin, end, columns;
  /// Row `row` of `stride` elements, `columns` of which count.
  __device__ RowChunks(int64_t row, int64_t stride, int64_t columns) : first(row * stride), columns(columns) {
    begin = (N - first % N) % N;
    if (begin > columns) begin = columns;
    end = begin + (columns - begin) / N * N;
  }
  /// Calls f<N>(col) for the chunks, from the last one on with `back`, and f<1>(col) for the other columns,
  /// over the threads of the block.
  template <bool back, class F>
  __device__ __forceinline__ void each(F&& f) const {
    const int64_t step = int64_t{blockDim.x} * N, own = begin + int64_t{threadIdx.x} * N;
    if constexpr (back) {
      if (own < end)
        for (int64_t col = own + (end - 1 - own) / step * step; col >= own; col -= step)
          f.template operator()<N>(col);
    } else {
#pragma unroll 2
      for (int64_t col = own; col < end; col += step) f.template operator()<N>(col);
    }
    if constexpr (N > 1)
      if (const int64_t col = rest(); col >= 0) f.template operator()<1>(col);
  }
  /// The column outside of chunks that this thread has, or -1.
  __device__ __forceinline__ int64_t rest() const {
    const int64_t i = threadIdx.x;
    if (i >= begin + columns - end) return -1;
    return i < begin ? i : end + i - begin;
  }
};

/// TopSum of the threads of the block together.
template <class T>
__device__ TopSum<T> of_block(const TopSum<T>& own, T* scratch) {
  const T all = block_reduce(own.top, Max(), -T(INFINITY), scratch);
  const T scaled = own.top == -T(INFINITY) ? own.sum : own.sum * exp_below(own.top - all);
  TopSum<T> out;
  out.top = all;
  out.sum = block_reduce(scaled, Sum(), T(0), scratch);
  return out;
}

/// TopSum of one row, over the threads of the block; each row is read once. kCap: of the soft-capped row.
template <int N, bool kCap, class T>
__device__ TopSum<T> top_and_sum(const T* logits, const RowChunks<N>& row, T cap, T* scratch) {
  TopSum<T> own;
  row.template each<false>([&]<int M>(int64_t col) {
    T x[M];
    load_values<M>(x, logits, row.first + col);
    if constexpr (kCap)
      for (int j = 0; j < M; ++j) x[j] = capped<true>(x[j], cap);
    own.template add<M>(x);
  });
  return of_block(own, scratch);
}

/// Slope of the soft-cap at x. *value: soft-capped x.
template <bool kCap, class T>
__device__ T through_cap(T x, T cap, T* value) {
  if constexpr (kCap) {
    const SoftCapped<T> s = soft_cap(x, cap);
    *value = s.value;
    return s.slope;
  }
  *value = x;
  return T(1);
}

/// Gradient of a row: exp(logits - top) * factor, minus `scale` at the target.
template <class T>
struct RowGradient {
  T cap, top, factor, scale;
  /// d = the gradient of logits x. The target is the element `target` of them, if it is one.
  template <int M, bool kCap, class A, class I>
  __device__ __forceinline__ void at(A* d, const T* x, I target) const {
    T slope[M], v[M];
    for (int j = 0; j < M; ++j) {
      T value;
      slope[j] = through_cap<kCap>(x[j], cap, &value);
      v[j] = exp_below(value - top) * factor;
    }
    if (target >= 0 && target < M)
      for (int j = 0; j < M; ++j) v[j] -= j == target ? scale : T(0);
    for (int j = 0; j < M; ++j) d[j] = static_cast<A>(kCap ? v[j] * slope[j] : v[j]);
  }
};

/// Writes the gradient of a row; `target`: a column of it, or none. Goes through the row from its end, which
/// the previous pass has left in the caches.
template <int N, bool kCap, class T, class G>
__device__ void row_gradient(G* dlogits, const T* logits, const RowChunks<N>& row, const RowGradient<T>& by,
                             int64_t target) {
  row.template each<true>([&]<int M>(int64_t col) {
    T x[M];
    load_values<M>(x, logits, row.first + col);
    compute_t<G> d[M];
    by.template at<M, kCap>(d, x, target - col);
    store_values<M>(dlogits, row.first + col, d);
  });
}

template <int N, class G>
__device__ void zero_columns(G* dlogits, const RowChunks<N>& row) {
  row.template each<false>([&]<int M>(int64_t col) {
    const compute_t<G> zeros[M] = {};
    store_values<M>(dlogits, row.first + col, zeros);
  });
}

/// Losses of rows: (rows), and with z_coeff above 0 as many of the z-loss behind them.
struct RowLosses {
  double* to;
  int64_t rows;
  double z_coeff;
  __device__ __forceinline__ void put(int64_t row, double loss, double z_loss) const {
    store_one(to, row, loss);
    if (z_coeff > 0) store_one(to, rows + row, z_loss);
  }
  /// Returns the factor of a row's gradient. The thread that `leads` puts the row's loss.
  template <class T>
  __device__ __forceinline__ T finish(int64_t row, const TopSum<T>& t, T at_target, double scale,
                                      bool leads) const {
    double log_z = 0, slope = 1;
    // Logarithms in double are for one thread, but where the z-loss asks for them.
    if (leads || z_coeff > 0) log_z = log(static_cast<double>(t.sum)) + static_cast<double>(t.top);
    if (z_coeff > 0) slope += 2 * z_coeff * log_z;
    if (leads) put(row, log_z - static_cast<double>(at_target), z_coeff * log_z * log_z);
    return T(scale * slope) / t.sum;
  }
};

/// loss += sum of the rows' losses: consecutive rows in order, then threads by one tree. One block.
__global__ void add_rows(double* loss, const double* row_loss, int64_t rows) {
  const int64_t begin = rows * threadIdx.x / blockDim.x, end = rows * (threadIdx.x + 1) / blockDim.x;
  double sum = 0;
  for (int64_t row = begin; row < end; ++row) sum += load_one(row_loss, row);
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) *loss += sum;
}

[[maybe_unused]] void add_losses(Stream& s, double* loss, const double* row_loss, int64_t rows) {
  launch(s, dim3(1), kLogitThreads, kWarp * 8, add_rows, loss, row_loss, rows);
}

/// Calls f with the types of the logits and of their gradient.
template <class F>
void with_types(DType logits, DType grad, F&& f) {
  if (logits == DType::f64) {
    f.template operator()<double, double>();
  } else if (is_half(grad)) {
    dispatch_half(grad, [&]<class G>() { f.template operator()<float, G>(); });
  } else {
    f.template operator()<float, float>();
  }
}

/// Calls f<N, kCap>() for logits of type T. For fp64, N is one pack, to limit registers.
template <class T, class F>
void with_chunks(double soft_cap, std::initializer_list<const void*> pointers, F&& f) {
  with_cap(soft_cap, [&]<bool kCap>() {
    if (aligned(pointers)) {
      f.template operator()<sizeof(T) == 8 ? kPackOf<T> : kChunk, kCap>();
    } else {
      f.template operator()<1, kCap>();
    }
  });
}

}  // namespace
}  // namespace cuda
}  // namespace ltrain
