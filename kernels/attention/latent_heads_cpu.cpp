#include <algorithm>

#include "kernels/attention/latent_heads.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void latent_heads_forward_cpu(DType t, void* qkv, const void* q, const void* kv, const void* key_rope,
                              int64_t rows, LatentHeads p) {
  dispatch_float(t, [&]<class T>() {
    const int64_t width = p.width(), each = p.nope + p.value;
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* queries = static_cast<const T*>(q) + row * p.heads * width;
        const T* parts = static_cast<const T*>(kv) + row * p.heads * each;
        const T* shared = static_cast<const T*>(key_rope) + row * p.rope;
        T* to = static_cast<T*>(qkv) + row * p.qkv_width();
        std::copy_n(queries, p.heads * width, to);
        T *key = to + p.heads * width, *value = key + p.heads * width;
        for (int64_t h = 0; h < p.heads; ++h, key += width, value += p.value, parts += each) {
          std::copy_n(parts, p.nope, key);
          std::copy_n(shared, p.rope, key + p.nope);
          std::copy_n(parts + p.nope, p.value, value);
        }
      }
    });
  });
}

void latent_heads_backward_cpu(DType t, void* dq, void* dkv, void* dkey_rope, const void* dqkv, int64_t rows,
                               LatentHeads p) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const int64_t width = p.width(), each = p.nope + p.value;
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = static_cast<const T*>(dqkv) + row * p.qkv_width();
        std::copy_n(from, p.heads * width, static_cast<T*>(dq) + row * p.heads * width);
        const T *key = from + p.heads * width, *value = key + p.heads * width;
        T* parts = static_cast<T*>(dkv) + row * p.heads * each;
        for (int64_t h = 0; h < p.heads; ++h, parts += each) {
          std::copy_n(key + h * width, p.nope, parts);
          std::copy_n(value + h * p.value, p.value, parts + p.nope);
        }
        T* shared = static_cast<T*>(dkey_rope) + row * p.rope;
        for (int64_t i = 0; i < p.rope; ++i) {
          A sum = 0;
          for (int64_t h = 0; h < p.heads; ++h) sum += get(key, h * width + p.nope + i);
          put(shared, i, sum);
        }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
