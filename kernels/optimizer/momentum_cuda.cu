#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/momentum.h"

namespace ltrain {
namespace cuda {
namespace {

template <MomentumRule rule, class A, class L, int N>
__global__ void momentum_kernel(A* w, A* m, A* g, L* low, int64_t packs, MomentumFactors<A> f) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto wp = load<A, N>(w, i * N), mp = load<A, N>(m, i * N), gp = load<A, N>(g, i * N);
    Pack<L, N> lp;
    for (int j = 0; j < N; ++j) {
      f.template step<rule>(wp.v[j], mp.v[j], gp.v[j]);
      put(lp.v, j, static_cast<float>(wp.v[j]));
    }
    store(m, i * N, mp);
    if (rule == MomentumRule::muon) {
      store(g, i * N, gp);
    } else {
      store(w, i * N, wp);
      if (low) store(low, i * N, lp);
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void momentum_cuda(Stream& s, DType t, void* master, void* moment, void* grad, DType low_type, void* low,
                   int64_t n, bool decay, MomentumArgs args) {
  const auto run = [&]<MomentumRule rule, class A, class L>() {
    with_pack<A>(n, {master, moment, grad, low}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, momentum_kernel<rule, A, L, N>,
             static_cast<A*>(master), static_cast<A*>(moment), static_cast<A*>(grad), static_cast<L*>(low),
             n / N, MomentumFactors<A>(args, decay));
    });
  };
  const auto by_type = [&]<MomentumRule rule>() {
    dispatch_half(low_type, [&]<class L>() {
      dispatch_wide(t, [&]<class A>() { run.template operator()<rule, A, L>(); });
    });
  };
  if (args.rule == MomentumRule::sgd) by_type.template operator()<MomentumRule::sgd>();
  if (args.rule == MomentumRule::lion) by_type.template operator()<MomentumRule::lion>();
  if (args.rule == MomentumRule::muon) by_type.template operator()<MomentumRule::muon>();
}

}  // namespace ltrain
