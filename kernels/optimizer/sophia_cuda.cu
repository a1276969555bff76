#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/sophia.h"

namespace ltrain {
namespace cuda {
namespace {

template <class A>
inline __device__ A sign_of(uint64_t seed, uint64_t stream, int64_t index) {
  return sign_bit(philox(seed, stream, static_cast<uint64_t>(index / kSignsOfCall)), index) ? A(1) : A(-1);
}

template <class A>
__global__ void add_signs_kernel(A* y, A factor, int64_t n, uint64_t seed, uint64_t stream, BoxElements e) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    y[i] += factor * sign_of<A>(seed, stream, e.index(i));
}

template <class A>
__global__ void hutchinson_kernel(A* h, const A* g, const A* shifted, int64_t n, EstimateFactors<A> f,
                                  uint64_t seed, uint64_t stream, BoxElements e) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    f.add(h[i], sign_of<A>(seed, stream, e.index(i)) * (shifted[i] - g[i]));
}

template <class A, int N>
__global__ void gauss_newton_kernel(A* h, const A* g, int64_t packs, EstimateFactors<A> f) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto hp = load<A, N>(h, i * N);
    const auto gp = load<A, N>(g, i * N);
    for (int j = 0; j < N; ++j) f.add_square(hp.v[j], gp.v[j]);
    store(h, i * N, hp);
  }
}

template <class A, class L, int N>
__global__ void sophia_kernel(A* w, A* m, const A* h, const A* g, L* low, int64_t packs, SophiaFactors<A> f) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    auto wp = load<A, N>(w, i * N), mp = load<A, N>(m, i * N);
    const auto hp = load<A, N>(h, i * N), gp = load<A, N>(g, i * N);
    Pack<L, N> lp;
    for (int j = 0; j < N; ++j) {
      f.step(wp.v[j], mp.v[j], hp.v[j], gp.v[j]);
      put(lp.v, j, static_cast<float>(wp.v[j]));
    }
    store(w, i * N, wp);
    store(m, i * N, mp);
    if (low) store(low, i * N, lp);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void add_signs_cuda(Stream& s, DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
                    BoxElements elements) {
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, add_signs_kernel<A>, static_cast<A*>(y), A(factor), n,
           seed, stream, elements);
  });
}

void hutchinson_estimate_cuda(Stream& s, DType t, void* hessian, const void* grad, const void* shifted,
                              int64_t n, double beta2, double radius, uint64_t seed, uint64_t stream,
                              BoxElements elements) {
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, hutchinson_kernel<A>, static_cast<A*>(hessian),
           static_cast<const A*>(grad), static_cast<const A*>(shifted), n,
           EstimateFactors<A>(beta2, 1.0 / radius), seed, stream, elements);
  });
}

void gauss_newton_estimate_cuda(Stream& s, DType t, void* hessian, const void* grad, int64_t n, double beta2,
                                double factor) {
  dispatch_wide(t, [&]<class A>() {
    with_pack<A>(n, {hessian, grad}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, gauss_newton_kernel<A, N>, static_cast<A*>(hessian),
             static_cast<const A*>(grad), n / N, EstimateFactors<A>(beta2, factor));
    });
  });
}

void sophia_cuda(Stream& s, DType t, void* master, void* exp_avg, const void* hessian, const void* grad,
                 DType low_type, void* low, int64_t n, bool decay, OptimizerStep args, double gamma) {
  dispatch_half(low_type, [&]<class L>() {
    dispatch_wide(t, [&]<class A>() {
      with_pack<A>(n, {master, exp_avg, hessian, grad, low}, [&]<int N>() {
        launch(s, blocks_for(n / N, kThreads), kThreads, 0, sophia_kernel<A, L, N>, static_cast<A*>(master),
               static_cast<A*>(exp_avg), static_cast<const A*>(hessian), static_cast<const A*>(grad),
               static_cast<L*>(low), n / N, SophiaFactors<A>(args, gamma, decay));
      });
    });
  });
}

}  // namespace ltrain
