#include "kernels/attention/rope.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void rope_cpu(DType t, void* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map,
              int64_t heads, int64_t head_dim, int64_t rotary_dim, bool inverse) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const int64_t half = rotary_dim / 2;
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* angles = table + map.embedded(row) * rotary_dim;
        T* x = static_cast<T*>(qkv) + row * width;
        for (int64_t h = 0; h < heads; ++h, x += head_dim)
          for (int64_t i = 0; i < half; ++i) {
            const A c = A(angles[2 * i]), sn = inverse ? -A(angles[2 * i + 1]) : A(angles[2 * i + 1]);
            const A a = get(x, i), b = get(x, i + half);
            put(x, i, a * c - b * sn);
            put(x, i + half, b * c + a * sn);
          }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
