#include "kernels/cuda/pack_cuda.h"
#include "kernels/matmul/nf4.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kWeights = 8;  // a thread has a word of codes

template <class T>
__global__ void dequantize_nf4(T* w, const uint8_t* codes, const float* absmax, int64_t n) {
  for (int64_t i = grid_thread(); i < n / kWeights; i += grid_stride()) {
    const Pack<uint8_t, kWeights / 2> from = load<uint8_t, kWeights / 2>(codes, i * (kWeights / 2));
    const float by = load_one(absmax, i * kWeights / kNf4Block);
    compute_t<T> v[kWeights];
    for (int j = 0; j < kWeights / 2; ++j) {
      v[2 * j] = static_cast<compute_t<T>>(nf4_level(from.v[j] >> 4) * by);
      v[2 * j + 1] = static_cast<compute_t<T>>(nf4_level(from.v[j] & 15) * by);
    }
    store_values<kWeights>(w, i * kWeights, v);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void nf4_dequantize_cuda(Stream& s, DType t, void* w, const uint8_t* codes, const float* absmax, int64_t n) {
  LT_CHECK(aligned({w}) && reinterpret_cast<uintptr_t>(codes) % (kWeights / 2) == 0,
           "nf4_dequantize: expected weights at 16 bytes and codes at 4, got others");
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(n / kWeights, kThreads), kThreads, 0, dequantize_nf4<T>, static_cast<T*>(w), codes,
           absmax, n);
  });
}

}  // namespace ltrain
