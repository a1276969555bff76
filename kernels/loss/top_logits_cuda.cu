#include "kernels/loss/cross_entropy_rows_cuda.h"
#include "kernels/loss/top_logits.h"

namespace ltrain {
namespace cuda {
namespace {

/// One block for each row, here and in filled. A thread's columns in both passes over a row are the same.
template <int N, class T, bool kCap>
__global__ void __launch_bounds__(kLogitThreads)
    spread(T* teacher, T* stats, const T* student, const int32_t* ids, const T* values,
           const int32_t* targets, int64_t vocab, int64_t k, T cap, T cool, VocabColumns part) {
  const int64_t row = blockIdx.x;
  T* const own = stats + kRestStats * row;
  if (load_one(targets, row) < 0) {
    if (threadIdx.x < kRestStats) store_one(own, threadIdx.x, T(0));
    return;
  }
  const RowChunks<N> chunks(row, vocab, part.columns);
  chunks.template each<false>([&]<int M>(int64_t col) {
    T none[M];
    for (int j = 0; j < M; ++j) none[j] = -T(INFINITY);
    store_values<M>(teacher, chunks.first + col, none);
  });
  __syncthreads();  // before other threads write logits between these columns
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    const int64_t at = load_one(ids, row * k + i) - part.first;
    if (at >= 0 && at < part.columns) store_one(teacher, chunks.first + at, load_one(values, row * k + i));
  }
  __syncthreads();
  TopSum<T> sums;
  chunks.template each<false>([&]<int M>(int64_t col) {
    T x[M], y[M];
    load_values<M>(x, student, chunks.first + col);
    load_values<M>(y, teacher, chunks.first + col);
    for (int j = 0; j < M; ++j) x[j] = y[j] == -T(INFINITY) ? capped<kCap>(x[j], cap) * cool : -T(INFINITY);
    sums.template add<M>(x);
  });
  const TopSum<T> all = of_block(sums, shared_memory<T>());
  if (threadIdx.x != 0) return;
  store_one(own, kRestTop, all.top / cool);
  store_one(own, kRestSum, all.sum);
}

template <int N, class T, bool kCap>
__global__ void __launch_bounds__(kLogitThreads)
    filled(T* teacher, const T* student, const T* rest, const int32_t* targets, const T* stats, int ranks,
           int64_t rows, int64_t vocab, T cap, double temperature, VocabColumns part) {
  const int64_t row = blockIdx.x;
  if (load_one(targets, row) < 0) return;
  T* const shared = shared_memory<T>();
  if (threadIdx.x == 0) shared[0] = rest_shift(stats, ranks, rows, row, load_one(rest, row), temperature);
  __syncthreads();
  const T shift = shared[0];
  const RowChunks<N> chunks(row, vocab, part.columns);
  chunks.template each<true>([&]<int M>(int64_t col) {
    T x[M], y[M];
    load_values<M>(x, student, chunks.first + col);
    load_values<M>(y, teacher, chunks.first + col);
    for (int j = 0; j < M; ++j)
      if (y[j] == -T(INFINITY)) y[j] = capped<kCap>(x[j], cap) + shift;
    store_values<M>(teacher, chunks.first + col, y);
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void spread_top_logits_cuda(Stream& s, DType t, void* teacher, void* stats, const void* student,
                            const int32_t* ids, const void* values, const int32_t* targets, int64_t rows,
                            int64_t vocab, int64_t k, VocabColumns part, double temperature,
                            double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_chunks<T>(soft_cap, {teacher, student}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, kWarp * sizeof(T), cuda::spread<N, T, kCap>,
             static_cast<T*>(teacher), static_cast<T*>(stats), static_cast<const T*>(student), ids,
             static_cast<const T*>(values), targets, vocab, k, static_cast<T>(soft_cap),
             static_cast<T>(1 / temperature), part);
    });
  });
}

void fill_rest_logits_cuda(Stream& s, DType t, void* teacher, const void* student, const void* rest,
                           const int32_t* targets, const void* stats, int ranks, int64_t rows, int64_t vocab,
                           VocabColumns part, double temperature, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_chunks<T>(soft_cap, {teacher, student}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kLogitThreads, kWarp * sizeof(T), cuda::filled<N, T, kCap>,
             static_cast<T*>(teacher), static_cast<const T*>(student), static_cast<const T*>(rest), targets,
             static_cast<const T*>(stats), ranks, rows, vocab, static_cast<T>(soft_cap), temperature, part);
    });
  });
}

}  // namespace ltrain
