#include "kernels/core/pack_cuda.h"
#include "kernels/ops/adamw.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;

inline __device__ float root_of(float x) { return sqrtf(x); }
inline __device__ double root_of(double x) { return sqrt(x); }

template <class A, class L, int N, bool kLow>
__global__ void update(A* w, A* m, A* v, const A* g, L* low, int64_t packs, AdamwFactors<A> f) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto wp = load<A, N>(w, i * N), mp = load<A, N>(m, i * N), vp = load<A, N>(v, i * N);
    const auto gp = load<A, N>(g, i * N);
    Pack<L, N> lp;
    for (int j = 0; j < N; ++j) {
      const A grad = gp.v[j] * f.scale + f.couple * wp.v[j];
      mp.v[j] = f.beta1 * mp.v[j] + f.one_minus1 * grad;
      vp.v[j] = f.beta2 * vp.v[j] + f.one_minus2 * grad * grad;
      wp.v[j] = wp.v[j] * f.keep - f.step * mp.v[j] / (root_of(vp.v[j]) * f.root + f.eps);
      if (kLow) put(lp.v, j, static_cast<float>(wp.v[j]));
    }
    store(w, i * N, wp);
    store(m, i * N, mp);
    store(v, i * N, vp);
    if (kLow) store(low, i * N, lp);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void adamw_cuda(Stream& s, DType t, void* master, void* exp_avg, void* exp_avg_sq, const void* grad,
                DType low_type, void* low, int64_t n, bool decay, AdamwArgs args) {
  const auto run = [&]<class A, class L>() {
    const AdamwFactors<A> f(args, decay);
    with_pack<A>(n, {master, exp_avg, exp_avg_sq, grad, low}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0,
             low ? cuda::update<A, L, N, true> : cuda::update<A, L, N, false>, static_cast<A*>(master),
             static_cast<A*>(exp_avg), static_cast<A*>(exp_avg_sq), static_cast<const A*>(grad),
             static_cast<L*>(low), n / N, f);
    });
  };
  dispatch_half(low_type,
                [&]<class L>() { dispatch_wide(t, [&]<class A>() { run.template operator()<A, L>(); }); });
}

}  // namespace ltrain
