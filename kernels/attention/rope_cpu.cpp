#include "kernels/attention/rope.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void rope_cpu(DType t, void* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map,
              RopeHeads p, int64_t rotary_dim, bool inverse) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const int64_t half = rotary_dim / 2, step = p.interleaved ? 2 : 1, apart = p.interleaved ? 1 : half;
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* angles = table + map.embedded(row) * rotary_dim;
        T* x = static_cast<T*>(qkv) + row * width + p.first;
        for (int64_t h = 0; h < p.heads; ++h, x += p.head_dim)
          for (int64_t i = 0; i < half; ++i) {
            const A c = A(angles[2 * i]), sn = inverse ? -A(angles[2 * i + 1]) : A(angles[2 * i + 1]);
            const int64_t at = step * i;
            const A a = get(x, at), b = get(x, at + apart);
            put(x, at, a * c - b * sn);
            put(x, at + apart, b * c + a * sn);
          }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
