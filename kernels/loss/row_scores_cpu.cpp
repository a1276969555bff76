#include <algorithm>

#include "kernels/loss/row_scores.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void row_scores_cpu(DType t, double* values, const void* x, const void* weight, const int32_t* targets,
                    int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const T* by = static_cast<const T*>(weight);
    for (int64_t row = 0; row < rows; ++row) {
      A sum = 0;
      if (targets[row] >= 0) {
        const T* of = static_cast<const T*>(x) + row * cols;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < cols; ++c) sum += get(of, c) * get(by, c);
      }
      values[row] = static_cast<double>(sum);
    }
  });
}

void row_scores_backward_cpu(DType t, void* dx, const void* weight, const int32_t* targets,
                             GradientScale scale, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      const T* by = static_cast<const T*>(weight);
      for (int64_t row = begin; row < end; ++row) {
        T* to = static_cast<T*>(dx) + row * cols;
        const A g = targets[row] < 0 ? A(0) : static_cast<A>(-scale.get(row));
        for (int64_t c = 0; c < cols; ++c) put(to, c, targets[row] < 0 ? A(0) : g * get(by, c));
      }
    });
  });
}

void row_scores_weight_cpu(DType t, void* dweight, const void* x, const int32_t* targets, GradientScale scale,
                           int64_t rows, int64_t cols, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    A* out = static_cast<A*>(dweight);
    if (!accumulate) std::fill(out, out + cols, A(0));
    for (int64_t row = 0; row < rows; ++row) {
      if (targets[row] < 0) continue;
      const A g = static_cast<A>(-scale.get(row));
      const T* of = static_cast<const T*>(x) + row * cols;
      for (int64_t c = 0; c < cols; ++c) out[c] += g * get(of, c);
    }
  });
}

}  // namespace ltrain::LT_ISA
