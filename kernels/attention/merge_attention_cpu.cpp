#include "kernels/attention/merge_attention.h"

#include <cmath>
#include <limits>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class T>
void merge(T* out, T* lse, const T* block_out, const T* block_lse, int64_t batch, int64_t heads, int64_t rows,
           int64_t head_dim) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  parallel_for(batch * rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (row / rows * heads + h) * rows + row % rows;
        const T mine = lse[at], other = block_lse[at];
        if (other == kNone) continue;  // the block saw no key; also avoids the difference of two infinities
        const T low = std::exp(-std::abs(other - mine));  // ratio of the smaller sum to the larger
        const T weight = other > mine ? 1 / (1 + low) : low / (1 + low);
        lse[at] = std::max(mine, other) + std::log1p(low);
        T* to = out + (row * heads + h) * head_dim;
        const T* from = block_out + (row * heads + h) * head_dim;
        for (int64_t c = 0; c < head_dim; ++c) to[c] -= weight * (to[c] - from[c]);
      }
  });
}

}  // namespace

void merge_attention_cpu(DType t, void* out, void* lse, const void* block_out, const void* block_lse,
                         int64_t batch, int64_t heads, int64_t rows, int64_t head_dim) {
  const auto run = [&]<class T>() {
    merge(static_cast<T*>(out), static_cast<T*>(lse), static_cast<const T*>(block_out),
          static_cast<const T*>(block_lse), batch, heads, rows, head_dim);
  };
  if (t == DType::f64) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
}

}  // namespace ltrain::LT_ISA
