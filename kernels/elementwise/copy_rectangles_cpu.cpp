#include "kernels/elementwise/copy_rectangles.h"

#include <cstring>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void copy_rectangles_cpu(DType to, DType from, void* out, const void* in, int64_t out_width, int64_t in_width,
                         const CopyRectangle* parts, int64_t count) {
  dispatch_float(from, [&]<class F>() {
    dispatch_float(to, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        const CopyRectangle& p = parts[i];
        const F* x = static_cast<const F*>(in) + p.from_row * in_width + p.from_col;
        T* y = static_cast<T*>(out) + p.to_row * out_width + p.to_col;
        parallel_for(p.rows, 1 + 32768 / (1 + p.cols), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            if constexpr (std::is_same_v<F, T>) {
              std::memcpy(y + r * out_width, x + r * in_width, p.cols * sizeof(T));
            } else {
              for (int64_t c = 0; c < p.cols; ++c)
                put(y + r * out_width, c, static_cast<compute_t<T>>(get(x + r * in_width, c)));
            }
          }
        });
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
