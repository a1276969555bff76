#include <algorithm>
#include <cmath>

#include "kernels/elementwise/magnitude.h"
#include "kernels/elementwise/magnitude_row.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void row_squares_cpu(DType t, void* squares, const void* w, const void* v, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* of = static_cast<const T*>(w) + row * cols;
        const T* more = static_cast<const T*>(v) + row * cols;
        A before = 0, after = 0;
#pragma omp simd reduction(+ : before, after)
        for (int64_t c = 0; c < cols; ++c) {
          const A x = get(of, c), y = x + get(more, c);
          before += x * x;
          after += y * y;
        }
        static_cast<A*>(squares)[2 * row] = before;
        static_cast<A*>(squares)[2 * row + 1] = after;
      }
    });
  });
}

void magnitude_factors_cpu(DType t, void* factors, const void* squares, const void* change, int64_t rows) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    for (int64_t row = 0; row < rows; ++row)
      write_magnitude_factors(static_cast<A*>(factors) + 2 * row, static_cast<const A*>(squares) + 2 * row,
                              static_cast<A>(get(static_cast<const T*>(change), row)));
  });
}

void scale_columns_cpu(DType t, void* y, const void* x, const void* factors, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      const A* by = static_cast<const A*>(factors);
      for (int64_t row = begin; row < end; ++row) {
        T* to = static_cast<T*>(y) + row * cols;
        const T* from = static_cast<const T*>(x) + row * cols;
        for (int64_t c = 0; c < cols; ++c) put(to, c, get(from, c) * by[2 * c]);
      }
    });
  });
}

void magnitude_gradient_cpu(DType t, void* out, const void* a, const void* b, const void* factors,
                            int64_t rows, int64_t cols, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(cols, 128, [&](int64_t begin, int64_t end) {
      A* total = static_cast<A*>(out);
      A* sums = scratch<A>(2, end - begin);
      std::fill(sums, sums + (end - begin), A(0));
      for (int64_t row = 0; row < rows; ++row) {
        const T* x = static_cast<const T*>(a) + row * cols;
        const T* y = static_cast<const T*>(b) + row * cols;
        for (int64_t c = begin; c < end; ++c) sums[c - begin] += get(x, c) * get(y, c);
      }
      for (int64_t c = begin; c < end; ++c) {
        const A v = sums[c - begin] * static_cast<const A*>(factors)[2 * c + 1];
        total[c] = accumulate ? total[c] + v : v;
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
