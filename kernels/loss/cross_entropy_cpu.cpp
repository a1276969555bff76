#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/soft_cap_cpu.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

/// The z-loss of rows, and its part in their gradient.
struct RowZLoss {
  double coeff;
  double* of_rows;  ///< (rows), scratch
  /// Factor of the softmax in the gradient: 1 + d/dlog(Z) of coeff * log(Z)^2.
  double slope(double log_z) const { return 1 + 2 * coeff * log_z; }
  void put(int64_t row, double log_z) const {
    if (coeff > 0) of_rows[row] = coeff * log_z * log_z;
  }
  void add_to(double* sum, int64_t rows) const {
    if (coeff > 0)
      for (int64_t row = 0; row < rows; ++row) *sum += of_rows[row];
  }
};

template <class T, class G>
void run(double* loss, G* dlogits, const T* logits, const int32_t* targets, int64_t rows, int64_t vocab,
         GradientScale by, double soft_cap, double z_coeff, double* z_loss) {
  double* row_loss = scratch<double>(3, 2 * rows);
  const RowZLoss z{z_coeff, row_loss + rows};
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t target = targets[row];
      row_loss[row] = 0;
      z.put(row, 0);
      if (target < 0) {
        if (dlogits)
          for (int64_t v = 0; v < vocab; ++v) put(dlogits, row * vocab + v, T(0));
        continue;
      }
      const double scale = by.get(row);
      const SeenRow<T> seen(logits + row * vocab, vocab, T(soft_cap));
      const T *x = seen.x, *slope = seen.slope;
      T top = x[0];
#pragma omp simd reduction(max : top)
      for (int64_t v = 0; v < vocab; ++v) top = x[v] > top ? x[v] : top;
      const T at_target = x[target];
      T sum = 0;
      // With a gradient buffer of the same type the exponentials are kept there, so that exp runs once.
      if constexpr (std::is_same_v<T, G>) {
        if (dlogits) {
          G* d = dlogits + row * vocab;
#pragma omp simd reduction(+ : sum)
          for (int64_t v = 0; v < vocab; ++v) {
            const T e = fast_exp(x[v] - top);
            d[v] = e;
            sum += e;
          }
          const double log_z = std::log(static_cast<double>(sum)) + static_cast<double>(top);
          z.put(row, log_z);
          const T factor = T(scale * z.slope(log_z)) / sum;
          for (int64_t v = 0; v < vocab; ++v) d[v] *= factor;
          d[target] -= T(scale);
          if (slope)
            for (int64_t v = 0; v < vocab; ++v) d[v] *= slope[v];
          row_loss[row] = log_z - static_cast<double>(at_target);
          continue;
        }
      }
#pragma omp simd reduction(+ : sum)
      for (int64_t v = 0; v < vocab; ++v) sum += fast_exp(x[v] - top);
      const double log_z = std::log(static_cast<double>(sum)) + static_cast<double>(top);
      z.put(row, log_z);
      row_loss[row] = log_z - static_cast<double>(at_target);
      if (dlogits) {
        G* d = dlogits + row * vocab;
        const T factor = T(scale * z.slope(log_z)) / sum;
        if (slope) {
#pragma omp simd
          for (int64_t v = 0; v < vocab; ++v) put(d, v, fast_exp(x[v] - top) * factor * slope[v]);
        } else {
#pragma omp simd
          for (int64_t v = 0; v < vocab; ++v) put(d, v, fast_exp(x[v] - top) * factor);
        }
        const T own = fast_exp(at_target - top) * factor - T(scale);
        put(d, target, slope ? own * slope[target] : own);
      }
    }
  });
  for (int64_t row = 0; row < rows; ++row) *loss += row_loss[row];
  z.add_to(z_loss, rows);
}

template <class T>
void stats_of(T* stats, const T* logits, const int32_t* targets, int64_t rows, int64_t vocab,
              VocabColumns part, double soft_cap) {
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = SeenRow<T>(logits + row * vocab, part.columns, T(soft_cap)).x;
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
                 int64_t rows, int64_t vocab, VocabColumns part, GradientScale by, double soft_cap,
                 double z_coeff, double* z_loss) {
  double* row_loss = scratch<double>(3, 2 * rows);
  const RowZLoss z{z_coeff, row_loss + rows};
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      row_loss[row] = 0;
      z.put(row, 0);
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
      const double log_z = std::log(sum) + top;
      z.put(row, log_z);
      row_loss[row] = log_z - at_target;
      if (!dlogits) continue;
      const double scale = by.get(row);
      const SeenRow<T> seen(logits + row * vocab, part.columns, T(soft_cap));
      const T *x = seen.x, *slope = seen.slope;
      G* d = dlogits + row * vocab;
      const T high = static_cast<T>(top), factor = static_cast<T>(scale * z.slope(log_z) / sum);
      const int64_t target = targets[row] - part.first;
      const bool here = target >= 0 && target < part.columns;
      const T own = here ? fast_exp(x[target] - high) * factor - static_cast<T>(scale) : T(0);
      if (slope) {
#pragma omp simd
        for (int64_t v = 0; v < part.columns; ++v) put(d, v, fast_exp(x[v] - high) * factor * slope[v]);
      } else {
#pragma omp simd
        for (int64_t v = 0; v < part.columns; ++v) put(d, v, fast_exp(x[v] - high) * factor);
      }
      if (here) put(d, target, slope ? own * slope[target] : own);
      for (int64_t v = part.columns; v < vocab; ++v) put(d, v, T(0));
    }
  });
  for (int64_t row = 0; row < rows; ++row) *loss += row_loss[row];
  z.add_to(z_loss, rows);
}

}  // namespace

void cross_entropy_stats_cpu(DType t, void* stats, const void* logits, const int32_t* targets, int64_t rows,
                             int64_t vocab, VocabColumns part, double soft_cap) {
  if (t == DType::f64) {
    stats_of(static_cast<double*>(stats), static_cast<const double*>(logits), targets, rows, vocab, part,
             soft_cap);
  } else {
    stats_of(static_cast<float*>(stats), static_cast<const float*>(logits), targets, rows, vocab, part,
             soft_cap);
  }
}

void cross_entropy_sharded_cpu(DType logits_type, DType grad_type, double* loss, void* dlogits,
                               const void* logits, const int32_t* targets, const void* stats, int ranks,
                               int64_t rows, int64_t vocab, VocabColumns part, GradientScale scale,
                               double soft_cap, double z_coeff, double* z_loss) {
  const float* x = static_cast<const float*>(logits);
  const float* f = static_cast<const float*>(stats);
  if (logits_type == DType::f64) {
    run_sharded(loss, static_cast<double*>(dlogits), static_cast<const double*>(logits), targets,
                static_cast<const double*>(stats), ranks, rows, vocab, part, scale, soft_cap, z_coeff,
                z_loss);
  } else if (is_half(grad_type)) {
    dispatch_half(grad_type, [&]<class G>() {
      run_sharded(loss, static_cast<G*>(dlogits), x, targets, f, ranks, rows, vocab, part, scale, soft_cap,
                  z_coeff, z_loss);
    });
  } else {
    run_sharded(loss, static_cast<float*>(dlogits), x, targets, f, ranks, rows, vocab, part, scale, soft_cap,
                z_coeff, z_loss);
  }
}

void cross_entropy_cpu(DType logits_type, DType grad_type, double* loss, void* dlogits, const void* logits,
                       const int32_t* targets, int64_t rows, int64_t vocab, GradientScale scale,
                       double soft_cap, double z_coeff, double* z_loss) {
  if (logits_type == DType::f64) {
    run(loss, static_cast<double*>(dlogits), static_cast<const double*>(logits), targets, rows, vocab, scale,
        soft_cap, z_coeff, z_loss);
  } else if (is_half(grad_type)) {
    dispatch_half(grad_type, [&]<class G>() {
      run(loss, static_cast<G*>(dlogits), static_cast<const float*>(logits), targets, rows, vocab, scale,
          soft_cap, z_coeff, z_loss);
    });
  } else {
    run(loss, static_cast<float*>(dlogits), static_cast<const float*>(logits), targets, rows, vocab, scale,
        soft_cap, z_coeff, z_loss);
  }
}

void soft_cap_logits_cpu(DType t, void* logits, int64_t n, double soft_cap_) {
  dispatch_wide(t, [&]<class T>() {
    T* x = static_cast<T*>(logits);
    parallel_for(n, 4096, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) x[i] = soft_cap(x[i], T(soft_cap_)).value;
    });
  });
}

}  // namespace ltrain::LT_ISA
