#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/sparsify.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread for each group of four.
template <class X, class W>
__global__ void keep_kernel(X* x, const W* w, int64_t fours) {
  for (int64_t i = grid_thread(); i < fours; i += grid_stride()) {
    compute_t<W> four[4];
    for (int j = 0; j < 4; ++j) four[j] = get(w, 4 * i + j);
    const unsigned stays = largest_two_of_4(four);
    for (int j = 0; j < 4; ++j)
      if (!(stays >> j & 1)) put(x, 4 * i + j, compute_t<X>(0));
  }
}

template <class X, class W>
__global__ void mask_kernel(X* x, const W* w, int64_t n) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    if (get(w, i) == 0) put(x, i, compute_t<X>(0));
}

}  // namespace
}  // namespace cuda

void prune_2_4_cuda(Stream& s, DType tx, DType tw, void* x, const void* w, int64_t n) {
  dispatch_float(tw, [&]<class W>() {
    dispatch_float(tx, [&]<class X>() {
      cuda::launch(s, cuda::blocks_for(n / 4, 256), 256, 0, cuda::keep_kernel<X, W>, static_cast<X*>(x),
                   static_cast<const W*>(w), n / 4);
    });
  });
}

void mask_by_zeros_cuda(Stream& s, DType tx, DType tw, void* x, const void* w, int64_t n) {
  dispatch_float(tw, [&]<class W>() {
    dispatch_float(tx, [&]<class X>() {
      cuda::launch(s, cuda::blocks_for(n, 256), 256, 0, cuda::mask_kernel<X, W>, static_cast<X*>(x),
                   static_cast<const W*>(w), n);
    });
  });
}

}  // namespace ltrain
