#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/fake_quantize.h"

namespace ltrain {
namespace cuda {
namespace {

/// One warp for each group, which it reads a second time from the cache.
template <class X, class W, class T, WeightCodes C>
__global__ void fake_quantize_kernel(X* out, const W* w, int64_t group, int64_t groups) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t g = grid_thread() / kWarp; g < groups; g += grid_stride() / kWarp) {
    const W* from = w + g * group;
    W most = 0;
    for (int64_t i = lane; i < group; i += kWarp) most = Max()(most, from[i] < W(0) ? -from[i] : from[i]);
    const W scale = quantized::scale_of<T>(warp_reduce(most, Max()), C);
    for (int64_t i = lane; i < group; i += kWarp)  // a lane writes what it alone has read
      put(out, g * group + i, quantized::rounded<T>(quantized::code_of<C>(from[i], scale) * scale));
  }
}

}  // namespace
}  // namespace cuda

void fake_quantize_cuda(Stream& s, DType to, DType type, void* out, const void* w, WeightCodes codes,
                        int64_t group, int64_t n) {
  dispatch_quantized(to, type, [&]<class X, class W, class T>() {
    dispatch_codes(codes, [&]<WeightCodes C>() {
      const int64_t groups = n / group;
      cuda::launch(s, cuda::blocks_for(groups * cuda::kWarp, 256), 256, 0,
                   cuda::fake_quantize_kernel<X, W, T, C>, static_cast<X*>(out), static_cast<const W*>(w),
                   group, groups);
    });
  });
}

}  // namespace ltrain
