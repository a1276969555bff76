#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/two_step_update.h"

namespace ltrain {
namespace cuda {
namespace {

template <class A, int N>
__global__ void lamb_kernel(const A* w, A* m, A* v, A* g, int64_t packs, AdamwFactors<A> f, A weight_decay) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const auto wp = load<A, N>(w, i * N);
    auto mp = load<A, N>(m, i * N), vp = load<A, N>(v, i * N), gp = load<A, N>(g, i * N);
    for (int j = 0; j < N; ++j) {
      const A grad = gp.v[j] * f.scale;
      mp.v[j] = f.beta1 * mp.v[j] + f.one_minus1 * grad;
      vp.v[j] = f.beta2 * vp.v[j] + f.one_minus2 * grad * grad;
      gp.v[j] = f.step * mp.v[j] / (sqrt(vp.v[j]) * f.root + f.eps) + weight_decay * wp.v[j];
    }
    store(m, i * N, mp);
    store(v, i * N, vp);
    store(g, i * N, gp);
  }
}

template <class A, class L, int N>
__global__ void apply_kernel(A* w, const A* u, L* low, const double* sums, int64_t packs,
                             DirectionArgs args) {
  const A factor = A(args.factor(sums ? sums[0] : 0, sums ? sums[1] : 0)), keep = A(args.keep);
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto wp = load<A, N>(w, i * N);
    const auto up = load<A, N>(u, i * N);
    Pack<L, N> lp;
    for (int j = 0; j < N; ++j) {
      wp.v[j] = wp.v[j] * keep - factor * up.v[j];
      put(lp.v, j, static_cast<float>(wp.v[j]));
    }
    store(w, i * N, wp);
    if (low) store(low, i * N, lp);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void lamb_direction_cuda(Stream& s, DType t, const void* master, void* exp_avg, void* exp_avg_sq, void* grad,
                         int64_t n, bool decay, OptimizerStep args) {
  const auto run = [&]<class A>() {
    OptimizerStep unit = args;
    unit.lr = 1;
    const AdamwFactors<A> f(unit, decay);
    with_pack<A>(n, {master, exp_avg, exp_avg_sq, grad}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, lamb_kernel<A, N>, static_cast<const A*>(master),
             static_cast<A*>(exp_avg), static_cast<A*>(exp_avg_sq), static_cast<A*>(grad), n / N, f,
             decay ? A(args.weight_decay) : A(0));
    });
  };
  dispatch_wide(t, run);
}

void apply_direction_cuda(Stream& s, DType t, void* master, const void* direction, DType low_type, void* low,
                          const double* sums, int64_t n, DirectionArgs args) {
  const auto run = [&]<class A, class L>() {
    with_pack<A>(n, {master, direction, low}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, apply_kernel<A, L, N>, static_cast<A*>(master),
             static_cast<const A*>(direction), static_cast<L*>(low), sums, n / N, args);
    });
  };
  dispatch_half(low_type,
                [&]<class L>() { dispatch_wide(t, [&]<class A>() { run.template operator()<A, L>(); }); });
}

}  // namespace ltrain
