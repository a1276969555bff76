#include "kernels/optimizer/sparsify.h"

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void prune_2_4_cpu(DType tx, DType tw, void* x, const void* w, int64_t n) {
  dispatch_float(tw, [&]<class W>() {
    dispatch_float(tx, [&]<class X>() {
      parallel_for(n / 4, 4096, [=](int64_t begin, int64_t end) {
        X* xp = static_cast<X*>(x);  // may alias w
        const W* wp = static_cast<const W*>(w);
        for (int64_t i = 4 * begin; i < 4 * end; i += 4) {
          compute_t<W> four[4];
          for (int j = 0; j < 4; ++j) four[j] = get(wp, i + j);
          const unsigned stays = largest_two_of_4(four);
          for (int j = 0; j < 4; ++j)
            if (!(stays >> j & 1)) put(xp, i + j, compute_t<X>(0));
        }
      });
    });
  });
}

void mask_by_zeros_cpu(DType tx, DType tw, void* x, const void* w, int64_t n) {
  dispatch_float(tw, [&]<class W>() {
    dispatch_float(tx, [&]<class X>() {
      parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
        X* xp = static_cast<X*>(x);
        const W* wp = static_cast<const W*>(w);
        for (int64_t i = begin; i < end; ++i)
          if (get(wp, i) == 0) put(xp, i, compute_t<X>(0));
      });
    });
  });
}

}  // namespace ltrain::LT_ISA
