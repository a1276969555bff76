#include "kernels/cuda/kernel_cuda.h"
#include "kernels/elementwise/cross_entropy.h"
#include "kernels/elementwise/soft_cap_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 512;

/// A running maximum and the sum of exponentials below it.
template <class T>
struct TopSum {
  T top, sum;
};

/// Of one row, over the threads of the block; each row is read once. kCap: of the soft-caps of x.
template <bool kCap, class T>
__device__ TopSum<T> top_and_sum(const T* x, int64_t columns, T cap, T* scratch) {
  T top = -T(INFINITY), sum = 0;
  for (int64_t v = threadIdx.x; v < columns; v += blockDim.x) {
    const T at = capped<kCap>(x[v], cap);
    if (at > top) {
      sum = sum * exp(top - at) + T(1);
      top = at;
    } else if (at > -T(INFINITY)) {
      sum += exp(at - top);
    }
  }
  const T all = block_reduce(top, Max(), -T(INFINITY), scratch);
  // A thread without a column has nothing to add, and a difference of two infinities is none.
  sum = block_reduce(top == -T(INFINITY) ? T(0) : sum * exp(top - all), Sum(), T(0), scratch);
  return {all, sum};
}

/// The slope of the soft-cap at x; *value: what x becomes there.
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

/// A block a row. `row_loss`: (rows).
template <class T, class G, bool kCap>
__global__ void cross_entropy(double* row_loss, G* dlogits, const T* logits, const int32_t* targets,
                              int64_t vocab, T cap, GradientScale by) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * vocab;
  const int32_t target = targets[row];
  if (target < 0) {
    if (dlogits)
      for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x)
        put(dlogits, row * vocab + v, compute_t<G>(0));
    if (threadIdx.x == 0) row_loss[row] = 0;
    return;
  }
  const T at_target = capped<kCap>(x[target], cap);
  // Its barriers part this read from the writes below.
  const TopSum<T> t = top_and_sum<kCap>(x, vocab, cap, shared_memory<T>());
  if (threadIdx.x == 0)
    row_loss[row] =
        log(static_cast<double>(t.sum)) + static_cast<double>(t.top) - static_cast<double>(at_target);
  if (!dlogits) return;
  const T scale = T(by.get()), factor = scale / t.sum;
  for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x) {
    T at;
    const T slope = through_cap<kCap>(x[v], cap, &at), p = exp(at - t.top) * factor;
    const T d = v == target ? p - scale : p;
    put(dlogits, row * vocab + v, kCap ? d * slope : d);
  }
}

template <class T, bool kCap>
__global__ void stats(T* out, const T* logits, const int32_t* targets, int64_t vocab, T cap,
                      VocabColumns part) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * vocab;
  const TopSum<T> t = top_and_sum<kCap>(x, part.columns, cap, shared_memory<T>());
  if (threadIdx.x != 0) return;
  const int64_t target = targets[row] - part.first;
  out[3 * row] = t.top;
  out[3 * row + 1] = t.sum;
  out[3 * row + 2] = target >= 0 && target < part.columns ? capped<kCap>(x[target], cap) : T(0);
}

template <class T, class G, bool kCap>
__global__ void sharded(double* row_loss, G* dlogits, const T* logits, const int32_t* targets, const T* stats,
                        int ranks, int64_t vocab, T cap, VocabColumns part, GradientScale by) {
  const int64_t row = blockIdx.x, rows = gridDim.x;
  const bool counted = targets[row] >= 0;
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
  if (threadIdx.x == 0) row_loss[row] = counted ? log(sum) + top - at_target : 0;
  if (!dlogits) return;
  const T *x = logits + row * vocab, high = static_cast<T>(top), factor = static_cast<T>(by.get() / sum),
          scale = static_cast<T>(by.get());
  const int64_t target = targets[row] - part.first;
  for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x) {
    T d = 0;
    if (counted && v < part.columns) {
      T at;
      const T slope = through_cap<kCap>(x[v], cap, &at);
      d = exp(at - high) * factor - (v == target ? scale : T(0));
      if constexpr (kCap) d *= slope;
    }
    put(dlogits, row * vocab + v, d);
  }
}

template <class T>
__global__ void cap_all(T* x, int64_t n, T cap) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) x[i] = capped<true>(x[i], cap);
}

/// The rows of a chunk in order, after those before it.
__global__ void add_rows(double* loss, const double* row_loss, int64_t rows) {
  double sum = *loss;
  for (int64_t row = 0; row < rows; ++row) sum += row_loss[row];
  *loss = sum;
}

void add_losses(Stream& s, double* loss, const double* row_loss, int64_t rows) {
  launch(s, dim3(1), 1, 0, add_rows, loss, row_loss, rows);
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

double* row_losses(Stream& s, int64_t rows) { return static_cast<double*>(scratch(s, rows * 8)); }

}  // namespace
}  // namespace cuda

using namespace cuda;

void cross_entropy_stats_cuda(Stream& s, DType t, void* stats, const void* logits, const int32_t* targets,
                              int64_t rows, int64_t vocab, VocabColumns part, double soft_cap) {
  const auto run = [&]<class T>() {
    with_cap(soft_cap, [&]<bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, kWarp * sizeof(T), cuda::stats<T, kCap>,
             static_cast<T*>(stats), static_cast<const T*>(logits), targets, vocab, static_cast<T>(soft_cap),
             part);
    });
  };
  dispatch_wide(t, run);
}

void cross_entropy_sharded_cuda(Stream& s, DType logits_type, DType grad_type, double* loss, void* dlogits,
                                const void* logits, const int32_t* targets, const void* stats, int ranks,
                                int64_t rows, int64_t vocab, VocabColumns part, GradientScale scale,
                                double soft_cap) {
  double* row_loss = row_losses(s, rows);
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    with_cap(soft_cap, [&]<bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, 0, cuda::sharded<T, G, kCap>, row_loss,
             static_cast<G*>(dlogits), static_cast<const T*>(logits), targets, static_cast<const T*>(stats),
             ranks, vocab, static_cast<T>(soft_cap), part, scale);
    });
  });
  add_losses(s, loss, row_loss, rows);
}

void cross_entropy_cuda(Stream& s, DType logits_type, DType grad_type, double* loss, void* dlogits,
                        const void* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                        GradientScale scale, double soft_cap) {
  double* row_loss = row_losses(s, rows);
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    with_cap(soft_cap, [&]<bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, kWarp * sizeof(T),
             cuda::cross_entropy<T, G, kCap>, row_loss, static_cast<G*>(dlogits),
             static_cast<const T*>(logits), targets, vocab, static_cast<T>(soft_cap), scale);
    });
  });
  add_losses(s, loss, row_loss, rows);
}

void soft_cap_logits_cuda(Stream& s, DType t, void* logits, int64_t n, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::cap_all<T>, static_cast<T*>(logits), n,
           static_cast<T>(soft_cap));
  });
}

}  // namespace ltrain
