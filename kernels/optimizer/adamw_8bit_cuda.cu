#include "kernels/cuda/pack_cuda.h"
#include "kernels/optimizer/adamw_8bit.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kCodeThreads = static_cast<int>(kCodeBlock);  // one thread for each element of a block of codes
constexpr int kWarps = 8;                                   // warps of an update's block
constexpr int kLane = static_cast<int>(kCodeBlock) / kWarp;  // elements of a lane

inline __device__ float scale_over(float most) { return most > 0 ? 1.0f / most : 0.0f; }

inline __device__ float magnitude(float v) { return v < 0 ? -v : v; }

template <class L>
struct CodedSegment {
  float *w, *scales;
  uint8_t *c1, *c2;
  const float* g;
  L* low;
  int64_t blocks;  // number of blocks of codes
  int64_t block;   // index of its first block among those of all segments
  AdamwFactors<float> factors;
};

/// Arguments of one launch: every compiler allows 4 KiB.
template <class L>
struct CodedSegments {
  static constexpr int kMost = 4000 / static_cast<int>(sizeof(CodedSegment<L>));
  int count = 0;
  int64_t blocks = 0;
  CodedSegment<L> of[kMost];
};

/// A warp handles a block of codes, and each lane kLane neighbouring elements of it.
template <class L>
__global__ void __launch_bounds__(kWarps* kWarp)
    adamw_8bit_kernel(const __grid_constant__ CodedSegments<L> all) {
  const int64_t mine = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (mine >= all.blocks) return;  // uniform over the warp
  int at = 0;
  for (int end = all.count; end - at > 1;) {
    const int middle = (at + end) / 2;
    (mine >= all.of[middle].block ? at : end) = middle;
  }
  const CodedSegment<L>& s = all.of[at];
  const AdamwFactors<float>& f = s.factors;
  const int64_t b = mine - s.block, i = b * kCodeBlock + threadIdx.x % kWarp * kLane;
  float m[kLane], v[kLane], w[kLane], g[kLane];
  const auto c1 = load<uint8_t, kLane>(s.c1, i), c2 = load<uint8_t, kLane>(s.c2, i);
  load_values<kLane>(w, s.w, i);
  load_values<kLane>(g, s.g, i);
  const float scale1 = load_one(s.scales, b), scale2 = load_one(s.scales, s.blocks + b);
  float most1 = 0, most2 = 0;
  for (int j = 0; j < kLane; ++j) {
    const float x = g[j] * f.scale + f.couple * w[j];
    m[j] = f.beta1 * (scale1 * first_value(c1.v[j])) + f.one_minus1 * x;
    v[j] = f.beta2 * (scale2 * second_value(c2.v[j])) + f.one_minus2 * x * x;
    w[j] = w[j] * f.keep - f.step * m[j] / (sqrtf(v[j]) * f.root + f.eps);
    most1 = Max()(most1, magnitude(m[j]));
    most2 = Max()(most2, v[j]);
  }
  store_values<kLane>(s.w, i, w);
  if (s.low) store_values<kLane>(s.low, i, w);
  most1 = warp_reduce(most1, Max());
  most2 = warp_reduce(most2, Max());
  Pack<uint8_t, kLane> d1, d2;
  for (int j = 0; j < kLane; ++j) {
    d1.v[j] = first_code(m[j] * scale_over(most1));
    d2.v[j] = second_code(v[j] * scale_over(most2));
  }
  store(s.c1, i, d1);
  store(s.c2, i, d2);
  if (threadIdx.x % kWarp == 0) store_one(s.scales, b, most1), store_one(s.scales, s.blocks + b, most2);
}

template <class L>
void run(Stream& s, const std::vector<CodedSpan>& spans) {
  CodedSegments<L> some;
  const auto flush = [&] {
    if (some.count == 0) return;
    launch(s, dim3(static_cast<unsigned>((some.blocks + kWarps - 1) / kWarps)), kWarps * kWarp, 0,
           cuda::adamw_8bit_kernel<L>, some);
    some.count = 0;
    some.blocks = 0;
  };
  for (const CodedSpan& span : spans) {
    LT_CHECK(aligned({span.master, span.grad, span.low}) &&
                 reinterpret_cast<uintptr_t>(span.first) % kLane == 0 &&
                 reinterpret_cast<uintptr_t>(span.second) % kLane == 0,
             "8-bit AdamW: expected weights, gradients and copies aligned to 16 bytes and codes to {}, got "
             "weights at {}, codes at {}",
             kLane, span.master, span.first);
    if (some.count == CodedSegments<L>::kMost) flush();
    some.of[some.count++] = {static_cast<float*>(span.master),
                             static_cast<float*>(span.scales),
                             static_cast<uint8_t*>(span.first),
                             static_cast<uint8_t*>(span.second),
                             static_cast<const float*>(span.grad),
                             static_cast<L*>(span.low),
                             span.n / kCodeBlock,
                             some.blocks,
                             AdamwFactors<float>(span.args, span.decay)};
    some.blocks += span.n / kCodeBlock;
  }
  flush();
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

void adamw_8bit_cuda(Stream& s, DType low_type, std::vector<CodedSpan> spans) {
  dispatch_half(low_type, [&]<class L>() { cuda::run<L>(s, spans); });
}

void decode_moments_cuda(Stream& s, void* values, const void* first, const void* second, const void* scales,
                         int64_t n) {
  launch(s, blocks_for(n, kCodeThreads), kCodeThreads, 0, cuda::decode_kernel, static_cast<float*>(values),
         static_cast<const uint8_t*>(first), static_cast<const uint8_t*>(second),
         static_cast<const float*>(scales), n);
}

void encode_moments_cuda(Stream& s, void* first, void* second, void* scales, const void* values, int64_t n) {
  launch(s, block_grid(n / kCodeBlock), kCodeThreads, kWarp * 4, cuda::encode_kernel,
         static_cast<uint8_t*>(first), static_cast<uint8_t*>(second), static_cast<float*>(scales),
         static_cast<const float*>(values), n / kCodeBlock);
}

}  // namespace ltrain
