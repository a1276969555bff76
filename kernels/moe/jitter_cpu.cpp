#include "kernels/moe/jitter.h"
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void jitter_cpu(DType t, void* y, const void* x, int64_t rows, int64_t cols, RowRandomArgs random,
                double eps) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const uint64_t call = random.call(row, cols);
        for (int64_t c = 0; c < cols; c += 4) {
          const Philox4 r = philox(random.seed, random.stream, call + static_cast<uint64_t>(c / 4));
          for (int64_t i = row * cols + c; i < row * cols + std::min(c + 4, cols); ++i)
            put(static_cast<T*>(y), i,
                get(static_cast<const T*>(x), i) *
                    (A(1) + A(eps) * (2 * A(to_uniform(r.v[(i - row * cols) & 3])) - 1)));
        }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
