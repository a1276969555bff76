#include "kernels/moe/token_rows.h"

#include <cstring>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void permute_rows_cpu(DType t, void* out, const void* x, TokenRows p, int64_t rows) {
  const int64_t bytes = p.cols * dtype_size(t);
  parallel_for(rows, 1 + 32768 / (1 + bytes), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(static_cast<char*>(out) + row * bytes,
                  static_cast<const char*>(x) + p.sources[row] / p.top_k * bytes, bytes);
  });
}

void combine_rows_cpu(DType t, void* y, const void* z, TokenRows p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A* weights = static_cast<const A*>(p.weights);
    parallel_for(p.tokens, 1 + 8192 / (1 + p.cols * p.top_k), [&](int64_t begin, int64_t end) {
      A* sum = scratch<A>(0, p.cols);
      for (int64_t token = begin; token < end; ++token) {
        std::memset(sum, 0, p.cols * sizeof(A));
        for (int64_t a = token * p.top_k; a < (token + 1) * p.top_k; ++a) {
          if (p.slots[a] < 0) continue;
          const T* from = static_cast<const T*>(z) + p.slots[a] * p.cols;
          const A w = weights ? weights[a] : A(1);
          for (int64_t c = 0; c < p.cols; ++c) sum[c] += w * get(from, c);
        }
        T* to = static_cast<T*>(y) + token * p.cols;
        for (int64_t c = 0; c < p.cols; ++c) put(to, c, sum[c]);
      }
    });
  });
}

void combine_rows_backward_cpu(DType t, void* dz, void* dweights, const void* dy, const void* z,
                               TokenRows p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const A* weights = static_cast<const A*>(p.weights);
    parallel_for(p.tokens * p.top_k, 1 + 8192 / (1 + p.cols), [&](int64_t begin, int64_t end) {
      for (int64_t a = begin; a < end; ++a) {
        const int64_t row = p.slots[a];
        A dot = 0;
        if (row >= 0) {
          const T *from = static_cast<const T*>(dy) + a / p.top_k * p.cols,
                  *out = static_cast<const T*>(z) + row * p.cols;
          T* to = static_cast<T*>(dz) + row * p.cols;
          const A w = weights[a];
#pragma omp simd reduction(+ : dot)
          for (int64_t c = 0; c < p.cols; ++c) {
            const A d = get(from, c);
            dot += d * get(out, c);
            put(to, c, w * d);
          }
        }
        static_cast<A*>(dweights)[a] = dot;
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
