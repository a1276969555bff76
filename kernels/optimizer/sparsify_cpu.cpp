#include "kernels/optimizer/sparsify.h"

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void prune_cpu(DType tx, DType tw, void* x, const void* w, SparsePattern p, int64_t n) {
  dispatch_float(tw, [&]<class W>() {
    dispatch_float(tx, [&]<class X>() {
      parallel_for(n / p.together(), 1024, [=](int64_t begin, int64_t end) {
        X* xp = static_cast<X*>(x);  // may alias w
        const W* wp = static_cast<const W*>(w);
        compute_t<W> size[SparsePattern::kLargestGroup];
        for (int64_t g = begin; g < end; ++g) {
          for (int j = 0; j < p.together(); ++j) size[j] = sparse::magnitude(get(wp, p.at(g, j)));
          if (sparse::satisfies(size, p)) continue;
          const unsigned keep = sparse::kept_of(size, p);
          for (int j = 0; j < p.together(); ++j)
            if (!(keep >> j & 1)) put(xp, p.at(g, j), compute_t<X>(0));
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

void choose_mask_cpu(DType tl, DType tr, void* low, const void* w, void* revived, SparsePattern p,
                     int64_t n) {
  sparse::dispatch_masked(tl, [&]<class L, class W>() {
    dispatch_float(tr, [&]<class R>() {
      parallel_for(n / p.together(), 1024, [=](int64_t begin, int64_t end) {
        L* lp = static_cast<L*>(low);
        const W* wp = static_cast<const W*>(w);
        R* rp = static_cast<R*>(revived);
        W size[SparsePattern::kLargestGroup];
        for (int64_t g = begin; g < end; ++g) {
          for (int j = 0; j < p.together(); ++j) size[j] = sparse::magnitude(wp[p.at(g, j)]);
          const unsigned keep = sparse::kept_of(size, p);
          for (int j = 0; j < p.together(); ++j) {
            const int64_t i = p.at(g, j);
            const bool stays = keep >> j & 1;
            if (rp) put(rp, i, compute_t<R>(stays && sparse::is_masked(get(lp, i))));
            if (stays)
              sparse::put_kept(lp, i, wp[i]);
            else
              put(lp, i, -W(0));
          }
        }
      });
    });
  });
}

void masked_copy_cpu(DType tl, void* low, const void* w, int64_t n) {
  sparse::dispatch_masked(tl, [&]<class L, class W>() {
    parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
      L* lp = static_cast<L*>(low);
      const W* wp = static_cast<const W*>(w);
      for (int64_t i = begin; i < end; ++i)
        if (!sparse::is_masked(get(lp, i))) sparse::put_kept(lp, i, wp[i]);
    });
  });
}

void masked_decay_cpu(DType tg, DType tl, void* grad, const void* low, const void* w, double factor,
                      int64_t n) {
  dispatch_float(tg, [&]<class G>() {
    sparse::dispatch_masked(tl, [&]<class L, class W>() {
      parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
        G* gp = static_cast<G*>(grad);
        const L* lp = static_cast<const L*>(low);
        const W* wp = static_cast<const W*>(w);
        using A = compute_t<G>;
        for (int64_t i = begin; i < end; ++i)
          if (sparse::is_masked(get(lp, i)))
            put(gp, i, get(gp, i) + static_cast<A>(factor) * static_cast<A>(wp[i]));
      });
    });
  });
}

}  // namespace ltrain::LT_ISA
