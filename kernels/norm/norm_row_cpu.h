// Sums of a norm's backward, shared by norms of full and of sharded rows. Only for *_cpu.cpp files.
#pragma once
#include <algorithm>

#include "kernels/norm/norm.h"
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// Sums over one row: dxhat * xhat, and dxhat.
template <class A>
struct NormDots {
  A dot, total;
};

/// Goes over all rows: adds to dweight and dbias (or sets them), and passes each row's sums to `give(row,
/// NormDots)`. A fixed number of chunks of rows has partial sums, so that the result does not depend on the
/// number of threads.
template <class T, class A, class Give>
void norm_backward_sums(const NormShape& shape, A* dweight, A* dbias, const T* dy, const T* x,
                        const T* weight, const A* mean, const A* rstd, Give&& give) {
  const int64_t C = shape.cols, chunks = std::min<int64_t>(16, shape.rows);
  const A offset = A(shape.weight_offset);
  A* partial = scratch<A>(2, 2 * chunks * C);
  parallel_for(chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      A* dw = partial + 2 * chunk * C;
      A* db = dw + C;
      for (int64_t c = 0; c < 2 * C; ++c) dw[c] = 0;
      for (int64_t row = shape.rows * chunk / chunks; row < shape.rows * (chunk + 1) / chunks; ++row) {
        const T* xr = x + row * C;
        const T* dyr = dy + row * C;
        const A r = rstd[row], m = shape.kind == NormKind::layer ? mean[row] : A(0);
        A dot = 0, total = 0;
#pragma omp simd reduction(+ : dot, total)
        for (int64_t c = 0; c < C; ++c) {
          const A hat = (get(xr, c) - m) * r, g = get(dyr, c), dhat = g * (get(weight, c) + offset);
          dot += dhat * hat;
          total += dhat;
          dw[c] += g * hat;
          db[c] += g;
        }
        give(row, NormDots<A>{dot, total});
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

/// dx of one row from the mean of its sums over the row's `all_cols` columns.
template <class T, class A>
inline void norm_backward_row(const NormShape& shape, int64_t all_cols, T* dx, const T* dy, const T* x,
                              const T* weight, A mean, A rstd, NormDots<A> d) {
  const A offset = A(shape.weight_offset);
  const A dot = d.dot / all_cols, total = shape.kind == NormKind::layer ? d.total / all_cols : A(0);
  if (shape.first) {
    for (int64_t c = 0; c < shape.cols; ++c) {
      const A hat = (get(x, c) - mean) * rstd;
      put(dx, c, (get(dy, c) * (get(weight, c) + offset) - total - hat * dot) * rstd);
    }
  } else {
    for (int64_t c = 0; c < shape.cols; ++c) {
      const A hat = (get(x, c) - mean) * rstd;
      put(dx, c, get(dx, c) + (get(dy, c) * (get(weight, c) + offset) - total - hat * dot) * rstd);
    }
  }
}

}  // namespace
}  // namespace ltrain::LT_ISA
