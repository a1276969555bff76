#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/sophia.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;

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
__global__ void sophia_kernel(A* w, A* m, A* h, const A* g, const A* shifted, int64_t n, SophiaFactors<A> f,
                              uint64_t seed, uint64_t stream, BoxElements e) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const A estimate = shifted ? sign_of<A>(seed, stream, e.index(i)) * (shifted[i] - g[i]) * f.over : A(0);
    f.step(w[i], m[i], h[i], g[i], estimate);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void add_signs_cuda(Stream& s, DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
                    BoxElements elements) {
  const auto run = [&]<class A>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, add_signs_kernel<A>, static_cast<A*>(y), A(factor), n,
           seed, stream, elements);
  };
  dispatch_wide(t, run);
}

void sophia_cuda(Stream& s, DType t, void* master, void* exp_avg, void* hessian, const void* grad,
                 const void* shifted, int64_t n, bool decay, SophiaArgs args, uint64_t seed, uint64_t stream,
                 BoxElements elements) {
  const auto run = [&]<class A>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, sophia_kernel<A>, static_cast<A*>(master),
           static_cast<A*>(exp_avg), static_cast<A*>(hessian), static_cast<const A*>(grad),
           static_cast<const A*>(shifted), n, SophiaFactors<A>(args, decay, shifted != nullptr), seed, stream,
           elements);
  };
  dispatch_wide(t, run);
}

}  // namespace ltrain
