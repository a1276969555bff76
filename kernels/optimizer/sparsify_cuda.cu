#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/sparsify.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread for each group.
template <class X, class W>
__global__ void keep_kernel(X* x, const W* w, SparsePattern p, int64_t groups) {
  for (int64_t g = grid_thread(); g < groups; g += grid_stride()) {
    compute_t<W> size[SparsePattern::kLargestGroup];
    for (int j = 0; j < p.together(); ++j) size[j] = sparse::magnitude(get(w, p.at(g, j)));
    if (sparse::satisfies(size, p)) continue;
    const unsigned keep = sparse::kept_of(size, p);
    for (int j = 0; j < p.together(); ++j)
      if (!(keep >> j & 1)) put(x, p.at(g, j), compute_t<X>(0));
  }
}

template <class X, class W>
__global__ void mask_kernel(X* x, const W* w, int64_t n) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    if (get(w, i) == 0) put(x, i, compute_t<X>(0));
}

/// One thread for each group.
template <class L, class W, class R>
__global__ void choose_kernel(L* low, const W* w, R* revived, SparsePattern p, int64_t groups) {
  for (int64_t g = grid_thread(); g < groups; g += grid_stride()) {
    W size[SparsePattern::kLargestGroup];
    for (int j = 0; j < p.together(); ++j) size[j] = sparse::magnitude(w[p.at(g, j)]);
    const unsigned keep = sparse::kept_of(size, p);
    for (int j = 0; j < p.together(); ++j) {
      const int64_t i = p.at(g, j);
      const bool stays = keep >> j & 1;
      if (revived) put(revived, i, compute_t<R>(stays && sparse::is_masked(get(low, i))));
      if (stays)
        sparse::put_kept(low, i, w[i]);
      else
        put(low, i, -W(0));
    }
  }
}

template <class L, class W>
__global__ void masked_copy_kernel(L* low, const W* w, int64_t n) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    if (!sparse::is_masked(get(low, i))) sparse::put_kept(low, i, w[i]);
}

template <class G, class L, class W>
__global__ void masked_decay_kernel(G* grad, const L* low, const W* w, compute_t<G> factor, int64_t n) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    if (sparse::is_masked(get(low, i))) put(grad, i, get(grad, i) + factor * static_cast<compute_t<G>>(w[i]));
}

}  // namespace
}  // namespace cuda

void prune_cuda(Stream& s, DType tx, DType tw, void* x, const void* w, SparsePattern p, int64_t n) {
  dispatch_float(tw, [&]<class W>() {
    dispatch_float(tx, [&]<class X>() {
      cuda::launch(s, cuda::blocks_for(n / p.together(), 256), 256, 0, cuda::keep_kernel<X, W>,
                   static_cast<X*>(x), static_cast<const W*>(w), p, n / p.together());
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

void choose_mask_cuda(Stream& s, DType tl, DType tr, void* low, const void* w, void* revived, SparsePattern p,
                      int64_t n) {
  sparse::dispatch_masked(tl, [&]<class L, class W>() {
    dispatch_float(tr, [&]<class R>() {
      cuda::launch(s, cuda::blocks_for(n / p.together(), 256), 256, 0, cuda::choose_kernel<L, W, R>,
                   static_cast<L*>(low), static_cast<const W*>(w), static_cast<R*>(revived), p,
                   n / p.together());
    });
  });
}

void masked_copy_cuda(Stream& s, DType tl, void* low, const void* w, int64_t n) {
  sparse::dispatch_masked(tl, [&]<class L, class W>() {
    cuda::launch(s, cuda::blocks_for(n, 256), 256, 0, cuda::masked_copy_kernel<L, W>, static_cast<L*>(low),
                 static_cast<const W*>(w), n);
  });
}

void masked_decay_cuda(Stream& s, DType tg, DType tl, void* grad, const void* low, const void* w,
                       double factor, int64_t n) {
  dispatch_float(tg, [&]<class G>() {
    sparse::dispatch_masked(tl, [&]<class L, class W>() {
      cuda::launch(s, cuda::blocks_for(n, 256), 256, 0, cuda::masked_decay_kernel<G, L, W>,
                   static_cast<G*>(grad), static_cast<const L*>(low), static_cast<const W*>(w),
                   static_cast<compute_t<G>>(factor), n);
    });
  });
}

}  // namespace ltrain
