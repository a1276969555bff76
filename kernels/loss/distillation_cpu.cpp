#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loss/distillation_row.h"
#include "kernels/loss/soft_cap_cpu.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

template <class T>
void row_stats(T* out, const T* x, const T* taught, int64_t columns, int64_t target, T cool) {
  T top = -std::numeric_limits<T>::infinity(), high = top;
#pragma omp simd reduction(max : top, high)
  for (int64_t v = 0; v < columns; ++v) {
    top = x[v] > top ? x[v] : top;
    high = taught[v] > high ? taught[v] : high;
  }
  T sum = 0, soft = 0, teacher = 0, cross = 0;
#pragma omp simd reduction(+ : sum, soft, teacher, cross)
  for (int64_t v = 0; v < columns; ++v) {
    const T s = x[v] - top, t = taught[v] - high, e = fast_exp(t * cool);
    sum += fast_exp(s);
    soft += fast_exp(s * cool);
    teacher += e;
    cross += e * (t - s);
  }
  out[kStudentTop] = top;
  out[kStudentSum] = sum;
  out[kStudentSoft] = soft;
  out[kAtTarget] = target >= 0 && target < columns ? x[target] : T(0);
  out[kTeacherTop] = high;
  out[kTeacherSoft] = teacher;
  out[kCross] = cross;
}

template <class T>
void stats_of(T* stats, const T* student, const T* teacher, const int32_t* targets, int64_t rows,
              int64_t vocab, VocabColumns part, double temperature, double soft_cap) {
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* out = stats + row * kDistillationStats;
      if (targets[row] < 0) {
        std::fill(out, out + kDistillationStats, T(0));
        continue;
      }
      const SeenRow<T> seen(student + row * vocab, part.columns, T(soft_cap));
      row_stats(out, seen.x, teacher + row * vocab, part.columns, targets[row] - part.first,
                static_cast<T>(1 / temperature));
    }
  });
}

template <class T, class G>
void row_gradient(G* d, const SeenRow<T>& seen, const T* taught, const DistilledRow& by, int64_t columns,
                  int64_t vocab, int64_t target, T cool) {
  const T *x = seen.x, *slope = seen.slope;
  const T top = static_cast<T>(by.student_top), high = static_cast<T>(by.teacher_top),
          label = static_cast<T>(by.label), own = static_cast<T>(by.student),
          other = static_cast<T>(by.teacher);
  const auto at = [&](int64_t v) {
    const T s = x[v] - top;
    return label * fast_exp(s) + own * fast_exp(s * cool) - other * fast_exp((taught[v] - high) * cool);
  };
  const bool here = target >= 0 && target < columns;
  const T at_target = here ? at(target) - static_cast<T>(by.target) : T(0);  // before d overwrites it
  if (slope) {
#pragma omp simd
    for (int64_t v = 0; v < columns; ++v) put(d, v, at(v) * slope[v]);
  } else {
#pragma omp simd
    for (int64_t v = 0; v < columns; ++v) put(d, v, at(v));
  }
  if (here) put(d, target, slope ? at_target * slope[target] : at_target);
  for (int64_t v = columns; v < vocab; ++v) put(d, v, T(0));
}

template <class T, class G>
void run(double* ce, double* kl, G* dstudent, const T* student, const T* teacher, const int32_t* targets,
         const T* stats, int ranks, int64_t rows, int64_t vocab, VocabColumns part, DistillationLoss loss,
         GradientScale scale, double soft_cap) {
  double* losses = scratch<double>(3, 2 * rows);
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      G* d = dstudent + row * vocab;
      losses[row] = losses[rows + row] = 0;
      if (targets[row] < 0) {
        for (int64_t v = 0; v < vocab; ++v) put(d, v, T(0));
        continue;
      }
      const DistilledRow by = distilled_row(stats, ranks, rows, row, loss, scale.get(row));
      losses[row] = by.ce;
      losses[rows + row] = by.kl;
      const SeenRow<T> seen(student + row * vocab, part.columns, T(soft_cap));
      row_gradient(d, seen, teacher + row * vocab, by, part.columns, vocab, targets[row] - part.first,
                   static_cast<T>(1 / loss.temperature));
    }
  });
  for (int64_t row = 0; row < rows; ++row) {
    *ce += losses[row];
    *kl += losses[rows + row];
  }
}

}  // namespace

void distillation_stats_cpu(DType t, void* stats, const void* student, const void* teacher,
                            const int32_t* targets, int64_t rows, int64_t vocab, VocabColumns part,
                            double temperature, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    stats_of(static_cast<T*>(stats), static_cast<const T*>(student), static_cast<const T*>(teacher), targets,
             rows, vocab, part, temperature, soft_cap);
  });
}

void distillation_cpu(DType logits_type, DType grad_type, double* ce, double* kl, void* dstudent,
                      const void* student, const void* teacher, const int32_t* targets, const void* stats,
                      int ranks, int64_t rows, int64_t vocab, VocabColumns part, DistillationLoss loss,
                      GradientScale scale, double soft_cap) {
  const auto run_as = [&]<class T, class G>() {
    run(ce, kl, static_cast<G*>(dstudent), static_cast<const T*>(student), static_cast<const T*>(teacher),
        targets, static_cast<const T*>(stats), ranks, rows, vocab, part, loss, scale, soft_cap);
  };
  if (logits_type == DType::f64) {
    run_as.template operator()<double, double>();
  } else if (is_half(grad_type)) {
    dispatch_half(grad_type, [&]<class G>() { run_as.template operator()<float, G>(); });
  } else {
    run_as.template operator()<float, float>();
  }
}

}  // namespace ltrain::LT_ISA
