#include "kernels/loss/cross_entropy.h"

#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/soft_cap_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 512;
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
    if constexpr (N > 1) {
      const int64_t i = threadIdx.x, rest = begin + columns - end;
      if (i < rest) f.template operator()<1>(i < begin ? i : end + i - begin);
    }
  }
};

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
  const T all = block_reduce(own.top, Max(), -T(INFINITY), scratch);
  const T scaled = own.top == -T(INFINITY) ? own.sum : own.sum * exp_below(own.top - all);
  TopSum<T> out;
  out.top = all;
  out.sum = block_reduce(scaled, Sum(), T(0), scratch);
  return out;
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

/// dlogits[row] = exp(logits - top) * factor, minus `scale` at the target (a column of the row, or none).
/// Goes through the row from its end, which the previous pass has left in the caches.
template <int N, bool kCap, class T, class G>
__device__ void row_gradient(G* dlogits, const T* logits, const RowChunks<N>& row, T cap, T top, T factor,
                             int64_t target, T scale) {
  row.template each<true>([&]<int M>(int64_t col) {
    T x[M];
    load_values<M>(x, logits, row.first + col);
    T slope[M];
    for (int j = 0; j < M; ++j) {
      T value;
      slope[j] = through_cap<kCap>(x[j], cap, &value);
      x[j] = exp_below(value - top) * factor;
    }
    if (const int64_t at = target - col; at >= 0 && at < M)
      for (int j = 0; j < M; ++j)
        if (j == at) x[j] -= scale;
    compute_t<G> d[M];
    for (int j = 0; j < M; ++j) d[j] = static_cast<compute_t<G>>(kCap ? x[j] * slope[j] : x[j]);
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

/// One block for each row. `row_loss`: (rows); with z_coeff above 0, followed by (rows) of the z-loss.
template <int N, class T, class G, bool kCap>
__global__ void __launch_bounds__(kThreads)
    cross_entropy(double* row_loss, G* dlogits, const T* logits, const int32_t* targets, int64_t vocab, T cap,
                  GradientScale by, double z_coeff) {
  const RowChunks<N> row(blockIdx.x, vocab, vocab);
  const int32_t target = load_one(targets, blockIdx.x);
  if (target < 0) {
    if (dlogits) zero_columns(dlogits, row);
    if (threadIdx.x == 0) {
      store_one(row_loss, blockIdx.x, 0.0);
      if (z_coeff > 0) store_one(row_loss, gridDim.x + blockIdx.x, 0.0);
    }
    return;
  }
  const T at_target = capped<kCap>(load_one(logits, row.first + target), cap);
  // The barriers in top_and_sum separate this read from the writes below.
  const TopSum<T> t = top_and_sum<N, kCap>(logits, row, cap, shared_memory<T>());
  double log_z = 0, slope = 1;  // logarithms in double are for one thread, but where the z-loss asks for them
  if (threadIdx.x == 0 || z_coeff > 0) log_z = log(static_cast<double>(t.sum)) + static_cast<double>(t.top);
  if (z_coeff > 0) slope += 2 * z_coeff * log_z;
  if (threadIdx.x == 0) {
    store_one(row_loss, blockIdx.x, log_z - static_cast<double>(at_target));
    if (z_coeff > 0) store_one(row_loss, gridDim.x + blockIdx.x, z_coeff * log_z * log_z);
  }
  if (!dlogits) return;
  const double scale = by.get(blockIdx.x);
  row_gradient<N, kCap>(dlogits, logits, row, cap, t.top, T(scale * slope) / t.sum, target, T(scale));
}

template <int N, class T, bool kCap>
__global__ void __launch_bounds__(kThreads)
    stats(T* out, const T* logits, const int32_t* targets, int64_t vocab, T cap, VocabColumns part) {
  const RowChunks<N> row(blockIdx.x, vocab, part.columns);
  const TopSum<T> t = top_and_sum<N, kCap>(logits, row, cap, shared_memory<T>());
  if (threadIdx.x != 0) return;
  const int64_t target = load_one(targets, blockIdx.x) - part.first;
  T* own = out + 3 * int64_t{blockIdx.x};
  store_one(own, 0, t.top);
  store_one(own, 1, t.sum);
  store_one(
      own, 2,
      target >= 0 && target < part.columns ? capped<kCap>(load_one(logits, row.first + target), cap) : T(0));
}

template <int N, class T, class G, bool kCap>
__global__ void __launch_bounds__(kThreads)
    sharded(double* row_loss, G* dlogits, const T* logits, const int32_t* targets, const T* stats, int ranks,
            int64_t vocab, T cap, VocabColumns part, GradientScale by, double z_coeff) {
  const int64_t row = blockIdx.x, rows = gridDim.x;
  const int32_t token = load_one(targets, row);
  double top = -INFINITY, sum = 0, at_target = 0;
  for (int r = 0; r < ranks; ++r) {
    const double t = stats[(r * rows + row) * 3];
    top = t > top ? t : top;
  }
  for (int r = 0; r < ranks; ++r) {
    const T* of = stats + (r * rows + row) * 3;
    sum += of[1] * exp(static_cast<double>(of[0]) - top);
    at_target += of[2];
  }
  double log_z = 0, slope = 1;
  if (threadIdx.x == 0 || z_coeff > 0) log_z = log(sum) + top;
  if (z_coeff > 0) slope += 2 * z_coeff * log_z;
  if (threadIdx.x == 0) {
    store_one(row_loss, row, token >= 0 ? log_z - at_target : 0);
    if (z_coeff > 0) store_one(row_loss, rows + row, token >= 0 ? z_coeff * log_z * log_z : 0);
  }
  if (!dlogits) return;
  if (token < 0) return zero_columns(dlogits, RowChunks<N>(row, vocab, vocab));
  const double scale = by.get(row);
  row_gradient<N, kCap>(dlogits, logits, RowChunks<N>(row, vocab, part.columns), cap, static_cast<T>(top),
                        static_cast<T>(scale * slope / sum), token - part.first, static_cast<T>(scale));
  for (int64_t v = part.columns + threadIdx.x; v < vocab; v += blockDim.x)  // padding
    put(dlogits, row * vocab + v, compute_t<G>(0));
}

template <class T, int P>
__global__ void cap_all(T* x, int64_t n, T cap) {
  over_packs<P>(n, [&]<int N>(int64_t i) {
    T v[N];
    load_values<N>(v, x, i);
    for (int j = 0; j < N; ++j) v[j] = capped<true>(v[j], cap);
    store_values<N>(x, i, v);
  });
}

/// loss += sum of the rows' losses: consecutive rows in order, then threads by one tree. One block.
__global__ void add_rows(double* loss, const double* row_loss, int64_t rows) {
  const int64_t begin = rows * threadIdx.x / blockDim.x, end = rows * (threadIdx.x + 1) / blockDim.x;
  double sum = 0;
  for (int64_t row = begin; row < end; ++row) sum += load_one(row_loss, row);
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) *loss += sum;
}

void add_losses(Stream& s, double* loss, const double* row_loss, int64_t rows) {
  launch(s, dim3(1), kThreads, kWarp * 8, add_rows, loss, row_loss, rows);
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

/// Room for the losses of rows, and for their z-losses behind them.
double* row_losses(Stream& s, int64_t rows, double z_coeff) {
  return static_cast<double*>(scratch(s, (z_coeff > 0 ? 2 : 1) * rows * 8));
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void cross_entropy_stats_cuda(Stream& s, DType t, void* stats, const void* logits, const int32_t* targets,
                              int64_t rows, int64_t vocab, VocabColumns part, double soft_cap) {
  const auto run = [&]<class T>() {
    with_chunks<T>(soft_cap, {logits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, kWarp * sizeof(T), cuda::stats<N, T, kCap>,
             static_cast<T*>(stats), static_cast<const T*>(logits), targets, vocab, static_cast<T>(soft_cap),
             part);
    });
  };
  dispatch_wide(t, run);
}

void cross_entropy_sharded_cuda(Stream& s, DType logits_type, DType grad_type, double* loss, void* dlogits,
                                const void* logits, const int32_t* targets, const void* stats, int ranks,
                                int64_t rows, int64_t vocab, VocabColumns part, GradientScale scale,
                                double soft_cap, double z_coeff, double* z_loss) {
  double* row_loss = row_losses(s, rows, z_coeff);
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    with_chunks<T>(soft_cap, {logits, dlogits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, 0, cuda::sharded<N, T, G, kCap>, row_loss,
             static_cast<G*>(dlogits), static_cast<const T*>(logits), targets, static_cast<const T*>(stats),
             ranks, vocab, static_cast<T>(soft_cap), part, scale, z_coeff);
    });
  });
  add_losses(s, loss, row_loss, rows);
  if (z_coeff > 0) add_losses(s, z_loss, row_loss + rows, rows);
}

void cross_entropy_cuda(Stream& s, DType logits_type, DType grad_type, double* loss, void* dlogits,
                        const void* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                        GradientScale scale, double soft_cap, double z_coeff, double* z_loss) {
  double* row_loss = row_losses(s, rows, z_coeff);
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    with_chunks<T>(soft_cap, {logits, dlogits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, kWarp * sizeof(T),
             cuda::cross_entropy<N, T, G, kCap>, row_loss, static_cast<G*>(dlogits),
             static_cast<const T*>(logits), targets, vocab, static_cast<T>(soft_cap), scale, z_coeff);
    });
  });
  add_losses(s, loss, row_loss, rows);
  if (z_coeff > 0) add_losses(s, z_loss, row_loss + rows, rows);
}

void soft_cap_logits_cuda(Stream& s, DType t, void* logits, int64_t n, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_alignment<T>({logits}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::cap_all<T, N>, static_cast<T*>(logits), n,
             static_cast<T>(soft_cap));
    });
  });
}

}  // namespace ltrain
