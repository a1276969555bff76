#include <cmath>

#include "kernels/norm/norm_cut.h"
#include "kernels/norm/norm_row_cpu.h"

namespace ltrain::LT_ISA {
namespace {

template <class T, class A>
void moments_of(const NormShape& shape, A* moments, const T* x) {
  const int64_t C = shape.cols;
  parallel_for(shape.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* xr = x + row * C;
      A total = 0, squares = 0;
      if (shape.kind == NormKind::layer) {
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < C; ++c) total += get(xr, c);
        total /= C;
        moments[2 * row] = total;
      }
#pragma omp simd reduction(+ : squares)
      for (int64_t c = 0; c < C; ++c) {
        const A v = get(xr, c) - total;
        squares += v * v;
      }
      moments[shape.kind == NormKind::layer ? 2 * row + 1 : row] = squares;
    }
  });
}

template <class T, class A>
void apply(const NormShape& shape, int ranks, T* y, A* mean, A* rstd, const T* x, const A* moments,
           const T* weight, const T* bias) {
  const int64_t C = shape.cols, rows = shape.rows;
  parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      A m = 0, squares = 0;
      if (shape.kind == NormKind::layer) {
        for (int r = 0; r < ranks; ++r) m += moments[2 * (r * rows + row)];
        m /= ranks;
        for (int r = 0; r < ranks; ++r) {
          const A* of = moments + 2 * (r * rows + row);
          squares += of[1] + (of[0] - m) * (of[0] - m) * C;
        }
        mean[row] = m;
      } else {
        for (int r = 0; r < ranks; ++r) squares += moments[r * rows + row];
      }
      const A scale = A(1) / std::sqrt(squares / (C * ranks) + A(shape.eps));
      rstd[row] = scale;
      const T* xr = x + row * C;
      T* yr = y + row * C;
      const A offset = A(shape.weight_offset);
      if (bias) {
        for (int64_t c = 0; c < C; ++c)
          put(yr, c, (get(xr, c) - m) * scale * (get(weight, c) + offset) + get(bias, c));
      } else {
        for (int64_t c = 0; c < C; ++c) put(yr, c, (get(xr, c) - m) * scale * (get(weight, c) + offset));
      }
    }
  });
}

template <class T, class A>
void dots_of(const NormShape& shape, A* dots, A* dweight, A* dbias, const T* dy, const T* x, const T* weight,
             const A* mean, const A* rstd) {
  const bool layer = shape.kind == NormKind::layer;
  norm_backward_sums(shape, dweight, dbias, dy, x, weight, mean, rstd, [&](int64_t row, NormDots<A> d) {
    dots[layer ? 2 * row : row] = d.dot;
    if (layer) dots[2 * row + 1] = d.total;
  });
}

template <class T, class A>
void backward(const NormShape& shape, int64_t all_cols, T* dx, const T* dy, const T* x, const T* weight,
              const A* mean, const A* rstd, const A* dots) {
  const int64_t C = shape.cols;
  const bool layer = shape.kind == NormKind::layer;
  parallel_for(shape.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const NormDots<A> d{dots[layer ? 2 * row : row], layer ? dots[2 * row + 1] : A(0)};
      norm_backward_row(shape, all_cols, dx + row * C, dy + row * C, x + row * C, weight,
                        layer ? mean[row] : A(0), rstd[row], d);
    }
  });
}

}  // namespace

void norm_moments_cpu(DType t, NormShape shape, void* moments, const void* x) {
  dispatch_float(t, [&]<class T>() {
    moments_of(shape, static_cast<compute_t<T>*>(moments), static_cast<const T*>(x));
  });
}

void norm_apply_cpu(DType t, NormShape shape, int ranks, void* y, void* mean, void* rstd, const void* x,
                    const void* moments, const void* weight, const void* bias) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    apply(shape, ranks, static_cast<T*>(y), static_cast<A*>(mean), static_cast<A*>(rstd),
          static_cast<const T*>(x), static_cast<const A*>(moments), static_cast<const T*>(weight),
          static_cast<const T*>(bias));
  });
}

void norm_cut_dots_cpu(DType t, NormShape shape, void* dots, void* dweight, void* dbias, const void* dy,
                       const void* x, const void* weight, const void* mean, const void* rstd) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    dots_of(shape, static_cast<A*>(dots), static_cast<A*>(dweight), static_cast<A*>(dbias),
            static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(weight),
            static_cast<const A*>(mean), static_cast<const A*>(rstd));
  });
}

void norm_cut_backward_cpu(DType t, NormShape shape, int64_t all_cols, void* dx, const void* dy,
                           const void* x, const void* weight, const void* mean, const void* rstd,
                           const void* dots) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    backward(shape, all_cols, static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(x),
             static_cast<const T*>(weight), static_cast<const A*>(mean), static_cast<const A*>(rstd),
             static_cast<const A*>(dots));
  });
}

}  // namespace ltrain::LT_ISA
