#include "kernels/norm/clip_qkv.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// `v` with the rounding of T.
template <class T>
compute_t<T> rounded(compute_t<T> v) {
  T stored;
  put(&stored, 0, v);
  return get(&stored, 0);
}

}  // namespace

void clip_qkv_forward_cpu(DType t, void* y, int64_t n, double limit) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A most = rounded<T>(A(limit));
    T* at = static_cast<T*>(y);
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const A v = get(at, i);
        put(at, i, v > most ? most : v < -most ? -most : v);
      }
    });
  });
}

void clip_heads_backward_cpu(DType t, void* dy, const void* x, const void* rstd, const void* weight,
                             int64_t rows, int64_t cols, HeadNorm p, double limit) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A most = rounded<T>(A(limit)), offset = A(p.weight_offset);
    const T* w = static_cast<const T*>(weight);
    parallel_for(rows, 1 + 8192 / (1 + p.heads * p.width), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin * p.heads; n < end * p.heads; ++n) {
        T* d = static_cast<T*>(dy) + n / p.heads * cols + p.first + n % p.heads * p.width;
        const T* v = static_cast<const T*>(x) + n * p.width;
        const A r = static_cast<const A*>(rstd)[n];
        for (int64_t c = 0; c < p.width; ++c) {
          const A y = rounded<T>(get(v, c) * r * (get(w, c) + offset));
          if (y > most || y < -most) put(d, c, A(0));
        }
      }
    });
  });
}

void clip_values_backward_cpu(DType t, void* dy, const void* y, int64_t rows, int64_t cols, int64_t first,
                              double limit) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A most = rounded<T>(A(limit));
    parallel_for(rows, 1 + 8192 / cols, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* d = static_cast<T*>(dy) + row * cols;
        const T* v = static_cast<const T*>(y) + row * cols;
        for (int64_t c = first; c < cols; ++c)
          if (get(v, c) >= most || get(v, c) <= -most) put(d, c, A(0));
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
