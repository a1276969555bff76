#include <cmath>

#include "kernels/elementwise/dropout_row_cpu.h"
#include "kernels/matmul/quantize_row_cpu.h"
#include "kernels/norm/norm_fp8.h"
#include "kernels/norm/norm_row_cpu.h"

namespace ltrain::LT_ISA {
namespace {

/// sum = x + delta * factor of row `row`; `factor` is scratch of `cols`, used with dropout.
template <class T>
inline void add_row(T* sum, const T* x, const T* delta, compute_t<T>* factor, int64_t row, int64_t cols,
                    const DropoutArgs& dropout) {
  if (dropout.threshold) {
    dropout_row(factor, row, cols, dropout);
    for (int64_t c = 0; c < cols; ++c) put(sum, c, get(x, c) + get(delta, c) * factor[c]);
  } else {
    for (int64_t c = 0; c < cols; ++c) put(sum, c, get(x, c) + get(delta, c));
  }
}

/// y null: calls done(row, y of the row) with each row in scratch.
template <class T, class Done>
void forward(NormShape shape, T* y, T* sum, compute_t<T>* mean, compute_t<T>* rstd, const T* x,
             const T* delta, const T* weight, const T* bias, const DropoutArgs& dropout, Done&& done) {
  using A = compute_t<T>;
  const int64_t C = shape.cols;
  parallel_for(shape.rows, 8, [&](int64_t begin, int64_t end) {
    A* v = scratch<A>(0, C);
    A* factor = dropout.threshold ? scratch<A>(1, C) : nullptr;
    T* one = y ? nullptr : scratch<T>(2, C);
    for (int64_t row = begin; row < end; ++row) {
      const T* xr = x + row * C;
      if (delta) {
        T* sr = sum + row * C;
        add_row(sr, xr, delta + row * C, factor, row, C, dropout);
        xr = sr;  // the norm reads the rounded sum, so that backward sees the same
      }
      A total = 0, squares = 0;
      if (shape.kind == NormKind::layer) {
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < C; ++c) {
          v[c] = get(xr, c);
          total += v[c];
        }
        total /= C;
        mean[row] = total;
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < C; ++c) {
          v[c] -= total;
          squares += v[c] * v[c];
        }
      } else {
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < C; ++c) {
          v[c] = get(xr, c);
          squares += v[c] * v[c];
        }
      }
      const A r = A(1) / std::sqrt(squares / C + A(shape.eps));
      rstd[row] = r;
      T* yr = y ? y + row * C : one;
      const A offset = A(shape.weight_offset);
      if (bias) {
        for (int64_t c = 0; c < C; ++c) put(yr, c, v[c] * r * (get(weight, c) + offset) + get(bias, c));
      } else {
        for (int64_t c = 0; c < C; ++c) put(yr, c, v[c] * r * (get(weight, c) + offset));
      }
      done(row, yr);
    }
  });
}

template <class T>
void backward(NormShape shape, T* dx, compute_t<T>* dweight, compute_t<T>* dbias, const T* dy, const T* x,
              const T* weight, const compute_t<T>* mean, const compute_t<T>* rstd) {
  using A = compute_t<T>;
  const int64_t C = shape.cols;
  norm_backward_sums(shape, dweight, dbias, dy, x, weight, mean, rstd, [&](int64_t row, NormDots<A> d) {
    norm_backward_row(shape, C, dx + row * C, dy + row * C, x + row * C, weight,
                      shape.kind == NormKind::layer ? mean[row] : A(0), rstd[row], d);
  });
}

}  // namespace

void norm_forward_cpu(DType t, NormShape shape, void* y, void* sum, void* mean, void* rstd, const void* x,
                      const void* delta, const void* weight, const void* bias, DropoutArgs dropout) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    forward<T>(shape, static_cast<T*>(y), static_cast<T*>(sum), static_cast<A*>(mean), static_cast<A*>(rstd),
               static_cast<const T*>(x), static_cast<const T*>(delta), static_cast<const T*>(weight),
               static_cast<const T*>(bias), dropout, [](int64_t, const T*) {});
  });
}

void norm_forward_fp8_cpu(DType t, NormShape shape, void* codes, const float* step, float* amax, void* sum,
                          void* mean, void* rstd, const void* x, const void* delta, const void* weight,
                          const void* bias, DropoutArgs dropout) {
  const float inverse = 1.0f / *step;
  const int64_t C = shape.cols;
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    forward<T>(shape, nullptr, static_cast<T*>(sum), static_cast<A*>(mean), static_cast<A*>(rstd),
               static_cast<const T*>(x), static_cast<const T*>(delta), static_cast<const T*>(weight),
               static_cast<const T*>(bias), dropout, [=](int64_t row, const T* y) {
                 encode<E4m3>(static_cast<uint8_t*>(codes) + row * C, y, C, inverse);
                 if (amax) raise(amax, largest(y, C));
               });
  });
}

void residual_add_cpu(DType t, void* sum, const void* x, const void* delta, int64_t rows, int64_t cols,
                      DropoutArgs dropout) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      auto* factor = dropout.threshold ? scratch<compute_t<T>>(1, cols) : nullptr;
      for (int64_t row = begin; row < end; ++row)
        add_row(static_cast<T*>(sum) + row * cols, static_cast<const T*>(x) + row * cols,
                static_cast<const T*>(delta) + row * cols, factor, row, cols, dropout);
    });
  });
}

void norm_backward_cpu(DType t, NormShape shape, void* dx, void* dweight, void* dbias, const void* dy,
                       const void* x, const void* weight, const void* mean, const void* rstd) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    backward<T>(shape, static_cast<T*>(dx), static_cast<A*>(dweight), static_cast<A*>(dbias),
                static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(weight),
                static_cast<const A*>(mean), static_cast<const A*>(rstd));
  });
}

}  // namespace ltrain::LT_ISA
