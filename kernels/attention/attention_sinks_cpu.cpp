#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_sinks.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void attention_sinks_forward_cpu(DType t, void* out, void* lse, const void* sinks, SinkShape p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const T* sink = static_cast<const T*>(sinks);
    A* sums = static_cast<A*>(lse);
    parallel_for(p.batch * p.rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t h = 0; h < p.heads; ++h) {
          A& sum = sums[(row / p.rows * p.heads + h) * p.rows + row % p.rows];
          const A over = get(sink, h) - sum;        // log ratio of the sink's term to the sum over all keys
          const A low = std::exp(-std::abs(over));  // ratio of the smaller of both to the larger
          const A keys = over > 0 ? low / (1 + low) : 1 / (1 + low);
          sum += std::max(over, A(0)) + std::log1p(low);
          T* to = static_cast<T*>(out) + (row * p.heads + h) * p.head_dim;
          for (int64_t c = 0; c < p.head_dim; ++c) put(to, c, get(to, c) * keys);
        }
    });
  });
}

void attention_sinks_backward_cpu(DType t, void* dsinks, const void* dout, const void* out, const void* lse,
                                  const void* sinks, SinkShape p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    constexpr int64_t kBlock = 64;  // rows of a partial sum, independent of the number of threads
    const int64_t rows = p.batch * p.rows, blocks = (rows + kBlock - 1) / kBlock;
    const T* sink = static_cast<const T*>(sinks);
    const A* sums = static_cast<const A*>(lse);
    A* partial = scratch<A>(0, blocks * p.heads);
    parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        A* to = partial + b * p.heads;
        std::fill(to, to + p.heads, A(0));
        for (int64_t row = b * kBlock; row < std::min(rows, (b + 1) * kBlock); ++row)
          for (int64_t h = 0; h < p.heads; ++h) {
            const T* grad = static_cast<const T*>(dout) + (row * p.heads + h) * p.head_dim;
            const T* made = static_cast<const T*>(out) + (row * p.heads + h) * p.head_dim;
            A dot = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t c = 0; c < p.head_dim; ++c) dot += get(grad, c) * get(made, c);
            to[h] -=
                std::exp(get(sink, h) - sums[(row / p.rows * p.heads + h) * p.rows + row % p.rows]) * dot;
          }
      }
    });
    A* result = static_cast<A*>(dsinks);
    if (!p.accumulate) std::fill(result, result + p.heads, A(0));
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t h = 0; h < p.heads; ++h) result[h] += partial[b * p.heads + h];
  });
}

}  // namespace ltrain::LT_ISA
