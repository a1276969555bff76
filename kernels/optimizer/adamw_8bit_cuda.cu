#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/adamw_8bit.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = static_cast<int>(kCodeBlock);  // a block of threads for a block of codes

inline __device__ float scale_over(float most) { return most > 0 ? 1.0f / most : 0.0f; }

inline __device__ float magnitude(float v) { return v < 0 ? -v : v; }

template <class L>
__global__ void adamw_8bit_kernel(float* w, uint8_t* c1, uint8_t* c2, float* scales, const float* g, L* low,
                                  int64_t blocks, AdamwFactors<float> f) {
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t i = b * kCodeBlock + threadIdx.x;
    float m = scales[b] * first_value(c1[i]), v = scales[blocks + b] * second_value(c2[i]);
    const float x = g[i] * f.scale + f.couple * w[i];
    m = f.beta1 * m + f.one_minus1 * x;
    v = f.beta2 * v + f.one_minus2 * x * x;
    const float now = w[i] * f.keep - f.step * m / (sqrtf(v) * f.root + f.eps);
    w[i] = now;
    if (low) put(low, i, now);
    const float most1 = block_reduce(magnitude(m), Max(), 0.0f, shared_memory<float>());
    const float most2 = block_reduce(v, Max(), 0.0f, shared_memory<float>());
    c1[i] = first_code(m * scale_over(most1));
    c2[i] = second_code(v * scale_over(most2));
    if (threadIdx.x == 0) scales[b] = most1, scales[blocks + b] = most2;
  }
}

__global__ void decode_kernel(float* values, const uint8_t* c1, const uint8_t* c2, const float* scales,
                              int64_t n) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    values[i] = scales[i / kCodeBlock] * first_value(c1[i]);
    values[n + i] = scales[n / kCodeBlock + i / kCodeBlock] * second_value(c2[i]);
  }
}

__global__ void encode_kernel(uint8_t* c1, uint8_t* c2, float* scales, const float* values, int64_t blocks) {
  const int64_t n = blocks * kCodeBlock;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t i = b * kCodeBlock + threadIdx.x;
    const float m = values[i], v = values[n + i];
    const float most1 = block_reduce(magnitude(m), Max(), 0.0f, shared_memory<float>());
    const float most2 = block_reduce(v, Max(), 0.0f, shared_memory<float>());
    c1[i] = first_code(m * scale_over(most1));
    c2[i] = second_code(v * scale_over(most2));
    if (threadIdx.x == 0) scales[b] = most1, scales[blocks + b] = most2;
  }
}

dim3 block_grid(int64_t blocks) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, 1 << 16)));
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void adamw_8bit_cuda(Stream& s, void* master, void* first, void* second, void* scales, const void* grad,
                     DType low_type, void* low, int64_t n, bool decay, AdamwArgs args) {
  dispatch_half(low_type, [&]<class L>() {
    launch(s, block_grid(n / kCodeBlock), kThreads, kWarp * 4, cuda::adamw_8bit_kernel<L>,
           static_cast<float*>(master), static_cast<uint8_t*>(first), static_cast<uint8_t*>(second),
           static_cast<float*>(scales), static_cast<const float*>(grad), static_cast<L*>(low), n / kCodeBlock,
           AdamwFactors<float>(args, decay));
  });
}

void decode_moments_cuda(Stream& s, void* values, const void* first, const void* second, const void* scales,
                         int64_t n) {
  launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::decode_kernel, static_cast<float*>(values),
         static_cast<const uint8_t*>(first), static_cast<const uint8_t*>(second),
         static_cast<const float*>(scales), n);
}

void encode_moments_cuda(Stream& s, void* first, void* second, void* scales, const void* values, int64_t n) {
  launch(s, block_grid(n / kCodeBlock), kThreads, kWarp * 4, cuda::encode_kernel,
         static_cast<uint8_t*>(first), static_cast<uint8_t*>(second), static_cast<float*>(scales),
         static_cast<const float*>(values), n / kCodeBlock);
}

}  // namespace ltrain
