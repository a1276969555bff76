#include "kernels/attention/rope.h"
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// A thread turns one pair of channels.
template <class T>
__global__ void rope(T* qkv, const float* table, int64_t pairs, int64_t width, RowMapArgs map, RopeHeads p,
                     int64_t half, bool inverse) {
  using A = compute_t<T>;
  for (int64_t n = grid_thread(); n < pairs; n += grid_stride()) {
    const int64_t i = n % half, h = n / half % p.heads, row = n / half / p.heads;
    const float* angle = table + (map.embedded(row) * half + i) * 2;
    const A c = A(angle[0]), sn = inverse ? -A(angle[1]) : A(angle[1]);
    T* x = qkv + row * width + h * p.head_dim + p.first;
    const int64_t one = p.interleaved ? 2 * i : i, other = p.interleaved ? one + 1 : i + half;
    const A a = get(x, one), b = get(x, other);
    put(x, one, a * c - b * sn);
    put(x, other, b * c + a * sn);
  }
}

}  // namespace
}  // namespace cuda

void rope_cuda(Stream& s, DType t, void* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map,
               RopeHeads heads, int64_t rotary_dim, bool inverse) {
  const int64_t pairs = rows * heads.heads * (rotary_dim / 2);
  dispatch_float(t, [&]<class T>() {
    cuda::launch(s, cuda::blocks_for(pairs, 256), 256, 0, cuda::rope<T>, static_cast<T*>(qkv), table, pairs,
                 width, map, heads, rotary_dim / 2, inverse);
  });
}

}  // namespace ltrain
