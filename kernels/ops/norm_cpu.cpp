#include <cmath>

#include "kernels/core/parallel_for.h"
#include "kernels/ops/dropout_row_cpu.h"
#include "kernels/ops/norm.h"

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

template <class T>
void forward(NormShape shape, T* y, T* sum, compute_t<T>* mean, compute_t<T>* rstd, const T* x,
             const T* delta, const T* weight, const T* bias, const DropoutArgs& dropout) {
  using A = compute_t<T>;
  const int64_t C = shape.cols;
  parallel_for(shape.rows, 8, [&](int64_t begin, int64_t end) {
    A* v = scratch<A>(0, C);
    A* factor = dropout.threshold ? scratch<A>(1, C) : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const T* xr = x + row * C;
      if (delta) {
        T* sr = sum + row * C;
        add_row(sr, xr, delta + row * C, factor, row, C, dropout);
        xr = sr;  // the norm sees the sum as it was rounded, so that backward sees the same
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
      T* yr = y + row * C;
      if (bias) {
        for (int64_t c = 0; c < C; ++c) put(yr, c, v[c] * r * get(weight, c) + get(bias, c));
      } else {
        for (int64_t c = 0; c < C; ++c) put(yr, c, v[c] * r * get(weight, c));
      }
    }
  });
}

template <class T>
void backward(NormShape shape, T* dx, compute_t<T>* dweight, compute_t<T>* dbias, const T* dy, const T* x,
              const T* weight, const compute_t<T>* mean, const compute_t<T>* rstd) {
  using A = compute_t<T>;
  const int64_t C = shape.cols;
  // Rows are cut into a fixed number of chunks, each with its own partial sums, so that the result does not
  // depend on the number of threads.
  const int64_t chunks = std::min<int64_t>(16, shape.rows);
  A* partial = scratch<A>(2, 2 * chunks * C);
  parallel_for(chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      A* dw = partial + 2 * chunk * C;
      A* db = dw + C;
      for (int64_t c = 0; c < 2 * C; ++c) dw[c] = 0;
      for (int64_t row = shape.rows * chunk / chunks; row < shape.rows * (chunk + 1) / chunks; ++row) {
        const T* xr = x + row * C;
        const T* dyr = dy + row * C;
        T* dxr = dx + row * C;
        const A r = rstd[row], m = shape.kind == NormKind::layer ? mean[row] : A(0);
        A dot = 0, total = 0;  // sum of dxhat * xhat, sum of dxhat
#pragma omp simd reduction(+ : dot, total)
        for (int64_t c = 0; c < C; ++c) {
          const A hat = (get(xr, c) - m) * r, g = get(dyr, c), dhat = g * get(weight, c);
          dot += dhat * hat;
          total += dhat;
          dw[c] += g * hat;
          db[c] += g;
        }
        dot /= C;
        total = shape.kind == NormKind::layer ? total / C : A(0);
        if (shape.first) {
          for (int64_t c = 0; c < C; ++c) {
            const A hat = (get(xr, c) - m) * r;
            put(dxr, c, (get(dyr, c) * get(weight, c) - total - hat * dot) * r);
          }
        } else {
          for (int64_t c = 0; c < C; ++c) {
            const A hat = (get(xr, c) - m) * r;
            put(dxr, c, get(dxr, c) + (get(dyr, c) * get(weight, c) - total - hat * dot) * r);
          }
        }
      }
    }
  });
  for (int64_t c = 0; c < C; ++c) {
    A dw = shape.accumulate ? dweight[c] : A(0), db = shape.accumulate && dbias ? dbias[c] : A(0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      dw += partial[2 * chunk * C + c];
      db += partial[2 * chunk * C + C + c];
    }
    dweight[c] = dw;
    if (dbias) dbias[c] = db;
  }
}

}  // namespace

void norm_forward_cpu(DType t, NormShape shape, void* y, void* sum, void* mean, void* rstd, const void* x,
                      const void* delta, const void* weight, const void* bias, DropoutArgs dropout) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    forward<T>(shape, static_cast<T*>(y), static_cast<T*>(sum), static_cast<A*>(mean), static_cast<A*>(rstd),
               static_cast<const T*>(x), static_cast<const T*>(delta), static_cast<const T*>(weight),
               static_cast<const T*>(bias), dropout);
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
