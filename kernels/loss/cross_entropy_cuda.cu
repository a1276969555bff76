#include "kernels/loss/cross_entropy.h"

#include "kernels/loss/cross_entropy_kept_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// One block for each row.
template <int N, class T, class G, bool kCap>
__global__ void __launch_bounds__(kLogitThreads)
    cross_entropy(RowLosses losses, G* dlogits, const T* logits, const int32_t* targets, int64_t vocab, T cap,
                  GradientScale by) {
  const RowChunks<N> row(blockIdx.x, vocab, vocab);
  const int32_t target = load_one(targets, blockIdx.x);
  if (target < 0) {
    if (dlogits) zero_columns(dlogits, row);
    if (threadIdx.x == 0) losses.put(blockIdx.x, 0, 0);
    return;
  }
  const T at_target = capped<kCap>(load_one(logits, row.first + target), cap);
  // The barriers in top_and_sum separate this read from the writes below.
  const TopSum<T> t = top_and_sum<N, kCap>(logits, row, cap, shared_memory<T>());
  const double scale = dlogits ? by.get(blockIdx.x) : 0;
  const T factor = losses.finish(blockIdx.x, t, at_target, scale, threadIdx.x == 0);
  if (dlogits)
    row_gradient<N, kCap>(dlogits, logits, row, RowGradient<T>{cap, t.top, factor, T(scale)}, target);
}

template <int N, class T, bool kCap>
__global__ void __launch_bounds__(kLogitThreads)
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
__global__ void __launch_bounds__(kLogitThreads)
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
  row_gradient<N, kCap>(
      dlogits, logits, RowChunks<N>(row, vocab, part.columns),
      RowGradient<T>{cap, static_cast<T>(top), static_cast<T>(scale * slope / sum), static_cast<T>(scale)},
      token - part.first);
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
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, kWarp * sizeof(T), cuda::stats<N, T, kCap>,
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
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, 0, cuda::sharded<N, T, G, kCap>, row_loss,
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
  const RowLosses losses{row_losses(s, rows, z_coeff), rows, z_coeff};
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    const T* from = static_cast<const T*>(logits);
    G* to = static_cast<G*>(dlogits);
    if constexpr (std::is_same_v<T, float>)
      if (dlogits && launch_kept(s, losses, to, from, targets, vocab, soft_cap, scale)) return;
    with_chunks<T>(soft_cap, {logits, dlogits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, kWarp * sizeof(T),
             cuda::cross_entropy<N, T, G, kCap>, losses, to, from, targets, vocab, static_cast<T>(soft_cap),
             scale);
    });
  });
  add_losses(s, loss, losses.to, rows);
  if (z_coeff > 0) add_losses(s, z_loss, losses.to + rows, rows);
}

void soft_cap_logits_cuda(Stream& s, DType t, void* logits, int64_t n, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_alignment<T>({logits}, [&]<int N>() {
      launch(s, blocks_for(n / N, kLogitThreads), kLogitThreads, 0, cuda::cap_all<T, N>,
             static_cast<T*>(logits), n, static_cast<T>(soft_cap));
    });
  });
}

}  // namespace ltrain
