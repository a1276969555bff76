#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/elementwise/cross_entropy.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

template <class T, class G>
void run(double* loss, G* dlogits, const T* logits, const int32_t* targets, int64_t rows, int64_t vocab,
         double scale) {
  double* row_loss = scratch<double>(3, rows);
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits + row * vocab;
      const int32_t target = targets[row];
      row_loss[row] = 0;
      if (target < 0) {
        if (dlogits)
          for (int64_t v = 0; v < vocab; ++v) put(dlogits, row * vocab + v, T(0));
        continue;
      }
      T top = x[0];
#pragma omp simd reduction(max : top)
      for (int64_t v = 0; v < vocab; ++v) top = x[v] > top ? x[v] : top;
      const T at_target = x[target];
      T sum = 0;
      // With a gradient buffer of the same type the exponentials are kept there, so exp runs once.
      if constexpr (std::is_same_v<T, G>) {
        if (dlogits) {
          G* d = dlogits + row * vocab;
#pragma omp simd reduction(+ : sum)
          for (int64_t v = 0; v < vocab; ++v) {
            const T e = fast_exp(x[v] - top);
            d[v] = e;
            sum += e;
          }
          const T factor = T(scale) / sum;
          for (int64_t v = 0; v < vocab; ++v) d[v] *= factor;
          d[target] -= T(scale);
          row_loss[row] =
              std::log(static_cast<double>(sum)) + static_cast<double>(top) - static_cast<double>(at_target);
          continue;
        }
      }
#pragma omp simd reduction(+ : sum)
      for (int64_t v = 0; v < vocab; ++v) sum += fast_exp(x[v] - top);
      row_loss[row] =
          std::log(static_cast<double>(sum)) + static_cast<double>(top) - static_cast<double>(at_target);
      if (dlogits) {
        G* d = dlogits + row * vocab;
        const T factor = T(scale) / sum;
#pragma omp simd
        for (int64_t v = 0; v < vocab; ++v) put(d, v, fast_exp(x[v] - top) * factor);
        put(d, target, fast_exp(at_target - top) * factor - T(scale));
      }
    }
  });
  for (int64_t row = 0; row < rows; ++row) *loss += row_loss[row];
}

template <class T>
void stats_of(T* stats, const T* logits, const int32_t* targets, int64_t rows, int64_t vocab,
              VocabColumns part) {
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits + row * vocab;
      T top = -std::numeric_limits<T>::infinity(), sum = 0;
#pragma omp simd reduction(max : top)
      for (int64_t v = 0; v < part.columns; ++v) top = x[v] > top ? x[v] : top;
#pragma omp simd reduction(+ : sum)
      for (int64_t v = 0; v < part.columns; ++v) sum += fast_exp(x[v] - top);
      const int64_t target = targets[row] - part.first;
      stats[3 * row] = top;
      stats[3 * row + 1] = sum;
      stats[3 * row + 2] = target >= 0 && target < part.columns ? x[target] : T(0);
    }
  });
}

template <class T, class G>
void run_sharded(double* loss, G* dlogits, const T* logits, const int32_t* targets, const T* stats, int ranks,
                 int64_t rows, int64_t vocab, VocabColumns part, double scale) {
  double* row_loss = scratch<double>(3, rows);
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      row_loss[row] = 0;
      if (targets[row] < 0) {
        if (dlogits)
          for (int64_t v = 0; v < vocab; ++v) put(dlogits, row * vocab + v, T(0));
        continue;
      }
      const auto stat = [&](int r, int which) {
        return static_cast<double>(stats[(r * rows + row) * 3 + which]);
      };
      double top = -std::numeric_limits<double>::infinity(), sum = 0, at_target = 0;
      for (int r = 0; r < ranks; ++r) top = std::max(top, stat(r, 0));
      for (int r = 0; r < ranks; ++r) {
        sum += stat(r, 1) * std::exp(stat(r, 0) - top);
        at_target += stat(r, 2);
      }
      row_loss[row] = std::log(sum) + top - at_target;
      if (!dlogits) continue;
      const T* x = logits + row * vocab;
      G* d = dlogits + row * vocab;
      const T high = static_cast<T>(top), factor = static_cast<T>(scale / sum);
      const int64_t target = targets[row] - part.first;
      const bool here = target >= 0 && target < part.columns;
      const T own = here ? fast_exp(x[target] - high) * factor - static_cast<T>(scale) : T(0);
#pragma omp simd
      for (int64_t v = 0; v < part.columns; ++v) put(d, v, fast_exp(x[v] - high) * factor);
      if (here) put(d, target, own);
      for (int64_t v = part.columns; v < vocab; ++v) put(d, v, T(0));
    }
  });
  for (int64_t row = 0; row < rows; ++row) *loss += row_loss[row];
}

}  // namespace

void cross_entropy_stats_cpu(DType t, void* stats, const void* logits, const int32_t* targets, int64_t rows,
                             int64_t vocab, VocabColumns part) {
  if (t == DType::f64) {
    stats_of(static_cast<double*>(stats), static_cast<const double*>(logits), targets, rows, vocab, part);
  } else {
    stats_of(static_cast<float*>(stats), static_cast<const float*>(logits), targets, rows, vocab, part);
  }
}

void cross_entropy_sharded_cpu(DType logits_type, DType grad_type, double* loss, void* dlogits,
                               const void* logits, const int32_t* targets, const void* stats, int ranks,
                               int64_t rows, int64_t vocab, VocabColumns part, GradientScale scale) {
  const float* x = static_cast<const float*>(logits);
  const float* f = static_cast<const float*>(stats);
  if (logits_type == DType::f64) {
    run_sharded(loss, static_cast<double*>(dlogits), static_cast<const double*>(logits), targets,
                static_cast<const double*>(stats), ranks, rows, vocab, part, scale.get());
  } else if (is_half(grad_type)) {
    dispatch_half(grad_type, [&]<class G>() {
      run_sharded(loss, static_cast<G*>(dlogits), x, targets, f, ranks, rows, vocab, part, scale.get());
    });
  } else {
    run_sharded(loss, static_cast<float*>(dlogits), x, targets, f, ranks, rows, vocab, part, scale.get());
  }
}

void cross_entropy_cpu(DType logits_type, DType grad_type, double* loss, void* dlogits, const void* logits,
                       const int32_t* targets, int64_t rows, int64_t vocab, GradientScale scale) {
  if (logits_type == DType::f64) {
    run(loss, static_cast<double*>(dlogits), static_cast<const double*>(logits), targets, rows, vocab,
        scale.get());
  } else if (is_half(grad_type)) {
    dispatch_half(grad_type, [&]<class G>() {
      run(loss, static_cast<G*>(dlogits), static_cast<const float*>(logits), targets, rows, vocab,
          scale.get());
    });
  } else {
    run(loss, static_cast<float*>(dlogits), static_cast<const float*>(logits), targets, rows, vocab,
        scale.get());
  }
}

}  // namespace ltrain::LT_ISA
