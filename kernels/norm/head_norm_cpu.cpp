#include "kernels/norm/head_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// Norm of one head in place; returns its rstd. Compiled once: if inlined, the sum would have different bits
/// with and without saving for backward, and recomputation must repeat the first forward.
template <class T>
__attribute__((noinline)) compute_t<T> norm_one(T* at, const T* w, const HeadNorm& p) {
  using A = compute_t<T>;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < p.width; ++c) sum += get(at, c) * get(at, c);
  const A r = 1 / std::sqrt(sum / static_cast<A>(p.width) + static_cast<A>(p.eps));
  const A offset = A(p.weight_offset);
  for (int64_t c = 0; c < p.width; ++c) put(at, c, get(at, c) * r * (get(w, c) + offset));
  return r;
}

}  // namespace

void head_norm_forward_cpu(DType t, void* y, void* x, void* rstd, const void* weight, int64_t rows,
                           int64_t cols, HeadNorm p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const T* w = static_cast<const T*>(weight);
    parallel_for(rows, 1 + 8192 / (1 + p.heads * p.width), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin * p.heads; n < end * p.heads; ++n) {
        T* at = static_cast<T*>(y) + n / p.heads * cols + p.first + n % p.heads * p.width;
        if (x) std::copy(at, at + p.width, static_cast<T*>(x) + n * p.width);
        const A r = norm_one(at, w, p);
        if (x) static_cast<A*>(rstd)[n] = r;
      }
    });
  });
}

void head_norm_backward_cpu(DType t, void* dy, void* dweight, const void* x, const void* rstd,
                            const void* weight, int64_t rows, int64_t cols, HeadNorm p, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    constexpr int64_t kBlock = 64;  // rows of a partial sum, independent of the number of threads
    const int64_t blocks = (rows + kBlock - 1) / kBlock;
    const T* w = static_cast<const T*>(weight);
    const A offset = A(p.weight_offset);
    A* partial = scratch<A>(0, blocks * p.width);
    parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        A* sums = partial + b * p.width;
        std::fill(sums, sums + p.width, A(0));
        for (int64_t n = b * kBlock * p.heads; n < std::min(rows, (b + 1) * kBlock) * p.heads; ++n) {
          T* d = static_cast<T*>(dy) + n / p.heads * cols + p.first + n % p.heads * p.width;
          const T* v = static_cast<const T*>(x) + n * p.width;
          const A r = static_cast<const A*>(rstd)[n];
          A dot = 0;
#pragma omp simd reduction(+ : dot)
          for (int64_t c = 0; c < p.width; ++c) {
            sums[c] += get(d, c) * get(v, c) * r;
            dot += get(d, c) * (get(w, c) + offset) * get(v, c);
          }
          dot *= r * r * r / static_cast<A>(p.width);
          for (int64_t c = 0; c < p.width; ++c)
            put(d, c, get(d, c) * (get(w, c) + offset) * r - get(v, c) * dot);
        }
      }
    });
    A* out = static_cast<A*>(dweight);
    if (!accumulate) std::fill(out, out + p.width, A(0));
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t c = 0; c < p.width; ++c) out[c] += partial[b * p.width + c];
  });
}

}  // namespace ltrain::LT_ISA
