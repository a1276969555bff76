#include "kernels/elementwise/dropout_row_cpu.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void dropout_cpu(DType t, void* y, const void* x, int64_t rows, int64_t cols, DropoutArgs d) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      A* factor = scratch<A>(0, cols);
      for (int64_t row = begin; row < end; ++row) {
        dropout_row(factor, row, cols, d);
        const T* in = static_cast<const T*>(x) + row * cols;
        T* out = static_cast<T*>(y) + row * cols;
        for (int64_t c = 0; c < cols; ++c) put(out, c, get(in, c) * factor[c]);
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
