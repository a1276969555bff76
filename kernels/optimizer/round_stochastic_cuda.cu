#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace cuda {
namespace {

__global__ void round_kernel(bf16* out, const float* in, int64_t n, uint64_t seed, uint64_t stream,
                             BoxElements e) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    out[i].bits = stochastic_bits(in[i], philox(seed, stream, static_cast<uint64_t>(e.index(i))).v[0]);
}

}  // namespace
}  // namespace cuda

void round_stochastic_cuda(Stream& s, void* out, const void* in, int64_t n, uint64_t seed, uint64_t stream,
                           BoxElements elements) {
  cuda::launch(s, cuda::blocks_for(n, 256), 256, 0, cuda::round_kernel, static_cast<bf16*>(out),
               static_cast<const float*>(in), n, seed, stream, elements);
}

}  // namespace ltrain
