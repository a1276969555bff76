#include "kernels/matmul/sparse/prune_unbiased.h"

#include "kernels/matmul/sparse/prune_pair.h"
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// u[c]: number in [0, 1) of channel c of the range, in the row that begins with Philox call `first`.
template <class A>
void draw_row(A* u, const RowRandomArgs& random, uint64_t first, int64_t count) {
  const int64_t begin = random.part * count, end = begin + count;
  for (int64_t call = begin / 4; call * 4 < end; ++call) {
    const Philox4 r = philox(random.seed, random.stream, first + static_cast<uint64_t>(call));
    for (int64_t c = std::max(begin, call * 4); c < std::min(end, call * 4 + 4); ++c)
      u[c - begin] = A(to_uniform(r.v[c % 4]));
  }
}

}  // namespace

void prune_unbiased_cpu(DType t, void* out, const void* dy, int64_t rows, int64_t cols, RowRandomArgs random,
                        ColumnRange range) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows / 2, 4, [&](int64_t begin, int64_t end) {
      A* u = scratch<A>(0, range.count);
      for (int64_t pair = begin; pair < end; ++pair) {
        draw_row(u, random, random.call(2 * pair, range.count), range.count);
        const T* first = static_cast<const T*>(dy) + 2 * pair * cols + range.first;
        T* to = static_cast<T*>(out) + 2 * pair * cols + range.first;
#pragma omp simd
        for (int64_t c = 0; c < range.count; ++c) {
          A a = get(first, c), b = get(first + cols, c);
          prune_pair(a, b, u[c]);
          put(to, c, a);
          put(to + cols, c, b);
        }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
