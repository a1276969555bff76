#include "kernels/cuda/kernel_cuda.h"
#include "kernels/moe/router_bias.h"
#include "kernels/moe/router_bias_step.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread for each expert of a layer.
template <class A>
__global__ void move_bias(A* bias, const double* chosen, int64_t layers, int64_t experts, int64_t stride,
                          double rate, BiasTarget target) {
  for (int64_t n = grid_thread(); n < layers * experts; n += grid_stride())
    bias[n] +=
        static_cast<A>(router_bias_step(chosen + n / experts * stride, experts, n % experts, rate, target));
}

}  // namespace
}  // namespace cuda

void move_router_bias_cuda(Stream& s, DType t, void* bias, const double* chosen, int64_t layers,
                           int64_t experts, int64_t stride, double rate, BiasTarget target) {
  const auto move = [&]<class A>(A* to) {
    cuda::launch(s, cuda::blocks_for(layers * experts, 256), 256, 0, cuda::move_bias<A>, to, chosen, layers,
                 experts, stride, rate, target);
  };
  t == DType::f64 ? move(static_cast<double*>(bias)) : move(static_cast<float*>(bias));
}

}  // namespace ltrain
