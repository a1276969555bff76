#include "kernels/optimizer/adamw.h"

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A, class L, class M, class G>
void update(A* __restrict w, M* __restrict m, M* __restrict v, const G* __restrict g, L* __restrict low,
            int64_t n, bool decay, const OptimizerStep& args) {
  const AdamwFactors<A> f(args, decay);
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    // Local pointers: a captured one loses __restrict, and with it the vector loop.
    A* __restrict wp = w;
    M* __restrict mp = m, * __restrict vp = v;
    const G* __restrict gp = g;
    const auto body = [&](int64_t i) __attribute__((always_inline)) {
      const A grad = f.gradient(A(get(gp, i)), wp[i]);
      const A mi = f.first(A(get(mp, i)), grad);
      const A vi = f.second(A(get(vp, i)), grad);
      put(mp, i, mi);
      put(vp, i, vi);
      return wp[i] = f.weight(wp[i], mi, std::sqrt(vi));
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

void adamw_cpu(AdamwTypes types, std::vector<AdamwSpan> spans) {
  const auto run_all = [&]<class A, class L, class M, class G>() {
    for (const AdamwSpan& s : spans) {
      A* w = static_cast<A*>(s.master);
      M *m = static_cast<M*>(s.exp_avg), *v = static_cast<M*>(s.exp_avg_sq);
      const G* g = static_cast<const G*>(s.grad);
      L* l = static_cast<L*>(s.low);
      int64_t begin = 0;
      for (const AdamwRun& run : s.runs) {
        update(w + begin, m + begin, v + begin, g + begin, l ? l + begin : l, run.end - begin, run.decay,
               run.args);
        begin = run.end;
      }
    }
  };
  dispatch_half(types.low, [&]<class L>() {
    dispatch_wide(types.master, [&]<class A>() {
      dispatch_beside<A>(types.moment, [&]<class M>() {
        dispatch_beside<A>(types.grad, [&]<class G>() { run_all.template operator()<A, L, M, G>(); });
      });
    });
  });
}

}  // namespace ltrain::LT_ISA
