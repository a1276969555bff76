#include "kernels/optimizer/momentum.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <MomentumRule rule, class A, class L>
void update(A* w, A* m, A* g, L* low, int64_t n, const MomentumFactors<A>& f) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict wp = w, * __restrict mp = m, * __restrict gp = g;
    L* __restrict lp = low;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) f.template step<rule>(wp[i], mp[i], gp[i]);
    if (!lp) return;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) put(lp, i, static_cast<float>(wp[i]));
  });
}

template <class A, class L>
void by_rule(void* master, void* moment, void* grad, void* low, int64_t n, bool decay,
             const MomentumArgs& args) {
  const MomentumFactors<A> f(args, decay);
  A *w = static_cast<A*>(master), *m = static_cast<A*>(moment), *g = static_cast<A*>(grad);
  L* l = static_cast<L*>(low);
  if (args.rule == MomentumRule::sgd) update<MomentumRule::sgd>(w, m, g, l, n, f);
  if (args.rule == MomentumRule::lion) update<MomentumRule::lion>(w, m, g, l, n, f);
  if (args.rule == MomentumRule::muon) update<MomentumRule::muon>(w, m, g, l, n, f);
}

}  // namespace

void momentum_cpu(DType t, void* master, void* moment, void* grad, DType low_type, void* low, int64_t n,
                  bool decay, MomentumArgs args) {
  dispatch_half(low_type, [&]<class L>() {
    if (t == DType::f64) {
      by_rule<double, L>(master, moment, grad, low, n, decay, args);
    } else {
      by_rule<float, L>(master, moment, grad, low, n, decay, args);
    }
  });
}

}  // namespace ltrain::LT_ISA
