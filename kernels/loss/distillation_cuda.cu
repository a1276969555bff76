#include "kernels/loss/cross_entropy_rows_cuda.h"
#include "kernels/loss/distillation_row.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kTargetThreads = 64;  ///< one for each row

/// Running statistics of both models' logits: maxima, and sums relative to them (DistillationStat).
template <class T>
struct BothSums {
  T top = -T(INFINITY), high = -T(INFINITY), sum = 0, soft = 0, taught = 0, cross = 0;

  /// Makes the sums relative to maxima that are at least as large. cool: 1 / temperature.
  __device__ __forceinline__ void move(T to_top, T to_high, T cool) {
    if (sum > 0) {
      const T s = top - to_top, t = high - to_high, by = exp_below(t * cool);
      sum *= exp_below(s);
      soft *= exp_below(s * cool);
      cross = by * (cross + taught * (t - s));
      taught *= by;
    }
    top = to_top, high = to_high;
  }

  /// Adds N values of the student and the teacher.
  template <int N>
  __device__ __forceinline__ void add(const T* x, const T* y, T cool) {
    T most = x[0], most_taught = y[0];
    for (int j = 1; j < N; ++j) most = Max()(most, x[j]), most_taught = Max()(most_taught, y[j]);
    if (most > top || most_taught > high) move(Max()(most, top), Max()(most_taught, high), cool);
    for (int j = 0; j < N; ++j) {
      const T s = x[j] - top, t = y[j] - high, e = exp_below(t * cool);
      sum += exp_below(s);
      soft += exp_below(s * cool);
      taught += e;
      cross += e * (t - s);
    }
  }
};

/// One block for each row, here and in distilled.
template <int N, class T, bool kCap>
__global__ void __launch_bounds__(kLogitThreads)
    both_stats(T* out, const T* student, const T* teacher, const int32_t* targets, int64_t vocab, T cap,
               T cool, VocabColumns part) {
  const RowChunks<N> row(blockIdx.x, vocab, part.columns);
  T* const own = out + int64_t{kDistillationStats} * blockIdx.x;
  const int32_t token = load_one(targets, blockIdx.x);
  if (token < 0) {
    if (threadIdx.x < kDistillationStats) store_one(own, threadIdx.x, T(0));
    return;
  }
  BothSums<T> sums;
  row.template each<false>([&]<int M>(int64_t col) {
    T x[M], y[M];
    load_values<M>(x, student, row.first + col);
    load_values<M>(y, teacher, row.first + col);
    for (int j = 0; j < M; ++j) x[j] = capped<kCap>(x[j], cap);
    sums.template add<M>(x, y, cool);
  });
  T* const scratch = shared_memory<T>();
  const T top = block_reduce(sums.top, Max(), -T(INFINITY), scratch),
          high = block_reduce(sums.high, Max(), -T(INFINITY), scratch);
  sums.move(top, high, cool);
  sums.sum = block_reduce(sums.sum, Sum(), T(0), scratch);
  sums.soft = block_reduce(sums.soft, Sum(), T(0), scratch);
  sums.taught = block_reduce(sums.taught, Sum(), T(0), scratch);
  sums.cross = block_reduce(sums.cross, Sum(), T(0), scratch);
  if (threadIdx.x != 0) return;
  const int64_t target = token - part.first;
  store_one(own, kStudentTop, top);
  store_one(own, kStudentSum, sums.sum);
  store_one(own, kStudentSoft, sums.soft);
  store_one(
      own, kAtTarget,
      target >= 0 && target < part.columns ? capped<kCap>(load_one(student, row.first + target), cap) : T(0));
  store_one(own, kTeacherTop, high);
  store_one(own, kTeacherSoft, sums.taught);
  store_one(own, kCross, sums.cross);
}

/// Losses of each row and the numbers of its gradient, by one thread: logarithms and exponentials in double
/// take many registers. losses: (2, rows), cross-entropies and divergences.
template <class T>
__global__ void rows_of(DistilledRow* out, double* losses, const int32_t* targets, const T* stats, int ranks,
                        int64_t rows, DistillationLoss loss, GradientScale scale) {
  const int64_t row = grid_thread();
  if (row >= rows) return;
  DistilledRow d;
  if (load_one(targets, row) >= 0) d = distilled_row(stats, ranks, rows, row, loss, scale.get(row));
  out[row] = d;
  store_one(losses, row, d.ce);
  store_one(losses, rows + row, d.kl);
}

template <int N, class T, class G, bool kCap>
__global__ void __launch_bounds__(kLogitThreads)
    distilled(G* dstudent, const DistilledRow* rows, const T* student, const T* teacher,
              const int32_t* targets, int64_t vocab, T cap, T cool, VocabColumns part) {
  const int64_t row = blockIdx.x;
  const int32_t token = load_one(targets, row);
  if (token < 0) return zero_columns(dstudent, RowChunks<N>(row, vocab, vocab));
  const DistilledRow& of = rows[row];
  const T top = static_cast<T>(of.student_top), high = static_cast<T>(of.teacher_top),
          label = static_cast<T>(of.label), own = static_cast<T>(of.student),
          other = static_cast<T>(of.teacher), minus = static_cast<T>(of.target);
  const RowChunks<N> chunks(row, vocab, part.columns);
  chunks.template each<true>([&]<int M>(int64_t col) {
    T x[M], y[M];
    load_values<M>(x, student, chunks.first + col);
    load_values<M>(y, teacher, chunks.first + col);
    compute_t<G> d[M];
    for (int j = 0; j < M; ++j) {
      T value;
      const T slope = through_cap<kCap>(x[j], cap, &value), s = value - top;
      T v = label * exp_below(s) + own * exp_below(s * cool) - other * exp_below((y[j] - high) * cool);
      if (token - part.first == col + j) v -= minus;
      d[j] = static_cast<compute_t<G>>(kCap ? v * slope : v);
    }
    store_values<M>(dstudent, chunks.first + col, d);
  });
  for (int64_t v = part.columns + threadIdx.x; v < vocab; v += blockDim.x)  // padding
    put(dstudent, row * vocab + v, compute_t<G>(0));
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void distillation_stats_cuda(Stream& s, DType t, void* stats, const void* student, const void* teacher,
                             const int32_t* targets, int64_t rows, int64_t vocab, VocabColumns part,
                             double temperature, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_chunks<T>(soft_cap, {student, teacher}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, kWarp * sizeof(T),
             cuda::both_stats<N, T, kCap>, static_cast<T*>(stats), static_cast<const T*>(student),
             static_cast<const T*>(teacher), targets, vocab, static_cast<T>(soft_cap),
             static_cast<T>(1 / temperature), part);
    });
  });
}

void distillation_cuda(Stream& s, DType logits_type, DType grad_type, double* ce, double* kl, void* dstudent,
                       const void* student, const void* teacher, const int32_t* targets, const void* stats,
                       int ranks, int64_t rows, int64_t vocab, VocabColumns part, DistillationLoss loss,
                       GradientScale scale, double soft_cap) {
  DistilledRow* const of_rows =
      static_cast<DistilledRow*>(scratch(s, rows * (static_cast<int64_t>(sizeof(DistilledRow)) + 2 * 8)));
  double* const losses = reinterpret_cast<double*>(of_rows + rows);
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    launch(s, blocks_for(rows, kTargetThreads), kTargetThreads, 0, cuda::rows_of<T>, of_rows, losses, targets,
           static_cast<const T*>(stats), ranks, rows, loss, scale);
    with_chunks<T>(soft_cap, {student, teacher, dstudent}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, 0, cuda::distilled<N, T, G, kCap>,
             static_cast<G*>(dstudent), of_rows, static_cast<const T*>(student),
             static_cast<const T*>(teacher), targets, vocab, static_cast<T>(soft_cap),
             static_cast<T>(1 / loss.temperature), part);
    });
  });
  add_losses(s, ce, losses, rows);
  add_losses(s, kl, losses + rows, rows);
}

}  // namespace ltrain
