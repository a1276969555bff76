#include "kernels/attention/latent_heads.h"
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// One thread writes one channel of qkv.
template <class T>
__global__ void gather_heads(T* qkv, const T* q, const T* kv, const T* key_rope, int64_t channels,
                             LatentHeads p) {
  const int64_t width = p.width(), each = p.nope + p.value, part = p.heads * width, all = p.qkv_width();
  for (int64_t n = grid_thread(); n < channels; n += grid_stride()) {
    const int64_t row = n / all, at = n % all;
    const T* parts = kv + row * p.heads * each;
    if (at < part) {
      qkv[n] = q[row * part + at];
    } else if (at < 2 * part) {
      const int64_t h = (at - part) / width, c = (at - part) % width;
      qkv[n] = c < p.nope ? parts[h * each + c] : key_rope[row * p.rope + c - p.nope];
    } else {
      const int64_t h = (at - 2 * part) / p.value, c = (at - 2 * part) % p.value;
      qkv[n] = parts[h * each + p.nope + c];
    }
  }
}

/// One thread writes one channel of a row of dq, dkv and dkey_rope, one after the other.
template <class T>
__global__ void scatter_heads(T* dq, T* dkv, T* dkey_rope, const T* dqkv, int64_t channels, LatentHeads p) {
  using A = compute_t<T>;
  const int64_t width = p.width(), each = p.nope + p.value, part = p.heads * width, parts = p.heads * each,
                all = part + parts + p.rope;
  for (int64_t n = grid_thread(); n < channels; n += grid_stride()) {
    const int64_t row = n / all;
    int64_t at = n % all;
    const T* from = dqkv + row * p.qkv_width();
    if (at < part) {
      dq[row * part + at] = from[at];
      continue;
    }
    at -= part;
    if (at < parts) {
      const int64_t h = at / each, c = at % each;
      dkv[row * parts + at] =
          c < p.nope ? from[part + h * width + c] : from[2 * part + h * p.value + c - p.nope];
      continue;
    }
    at -= parts;
    A sum = 0;
    for (int64_t h = 0; h < p.heads; ++h) sum += get(from, part + h * width + p.nope + at);
    put(dkey_rope, row * p.rope + at, sum);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void latent_heads_forward_cuda(Stream& s, DType t, void* qkv, const void* q, const void* kv,
                               const void* key_rope, int64_t rows, LatentHeads p) {
  const int64_t channels = rows * p.qkv_width();
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(channels, 256), 256, 0, cuda::gather_heads<T>, static_cast<T*>(qkv),
           static_cast<const T*>(q), static_cast<const T*>(kv), static_cast<const T*>(key_rope), channels, p);
  });
}

void latent_heads_backward_cuda(Stream& s, DType t, void* dq, void* dkv, void* dkey_rope, const void* dqkv,
                                int64_t rows, LatentHeads p) {
  const int64_t channels = rows * (p.heads * (p.width() + p.nope + p.value) + p.rope);
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(channels, 256), 256, 0, cuda::scatter_heads<T>, static_cast<T*>(dq),
           static_cast<T*>(dkv), static_cast<T*>(dkey_rope), static_cast<const T*>(dqkv), channels, p);
  });
}

}  // namespace ltrain
