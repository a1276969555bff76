#include "kernels/optimizer/adamw.h"

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A, class L>
void update(A* __restrict w, A* __restrict m, A* __restrict v, const A* __restrict g, L* __restrict low,
            int64_t n, bool decay, const AdamwArgs& args) {
  const AdamwFactors<A> f(args, decay);
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    // Pointers of its own: a captured one has lost __restrict, and with it the vector loop.
    A* __restrict wp = w, * __restrict mp = m, * __restrict vp = v;
    const A* __restrict gp = g;
    const auto body = [&](int64_t i) __attribute__((always_inline)) {
      const A grad = gp[i] * f.scale + f.couple * wp[i];
      const A mi = f.beta1 * mp[i] + f.one_minus1 * grad;
      const A vi = f.beta2 * vp[i] + f.one_minus2 * grad * grad;
      mp[i] = mi;
      vp[i] = vi;
      return wp[i] = wp[i] * f.keep - f.step * mi / (std::sqrt(vi) * f.root + f.eps);
    };
    if (low) {
      L* __restrict lp = low;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) put(lp, i, static_cast<float>(body(i)));
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) body(i);
    }
  });
}

}  // namespace

void adamw_cpu(DType t, DType low_type, std::vector<AdamwSpan> spans) {
  dispatch_half(low_type, [&]<class L>() {
    dispatch_wide(t, [&]<class A>() {
      for (const AdamwSpan& s : spans) {
        A *w = static_cast<A*>(s.master), *m = static_cast<A*>(s.exp_avg), *v = static_cast<A*>(s.exp_avg_sq);
        const A* g = static_cast<const A*>(s.grad);
        L* l = static_cast<L*>(s.low);
        int64_t begin = 0;
        for (const AdamwRun& run : s.runs) {
          update(w + begin, m + begin, v + begin, g + begin, l ? l + begin : l, run.end - begin, run.decay,
                 run.args);
          begin = run.end;
        }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
