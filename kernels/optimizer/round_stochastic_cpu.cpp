#include "kernels/optimizer/round_stochastic.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/rng.h"

namespace ltrain::LT_ISA {

void round_stochastic_cpu(void* out, const void* in, int64_t n, uint64_t seed, uint64_t stream,
                          BoxElements e) {
  bf16* to = static_cast<bf16*>(out);
  const float* from = static_cast<const float*>(in);
  const int64_t row = e.extent[e.rank - 1];
  parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
    // up to the end of a row, within which indices are consecutive
    for (int64_t i = begin, next; i < end; i = next) {
      next = std::min(end, i + row - (e.begin + i) % row);
      const uint64_t at = static_cast<uint64_t>(e.index(i));
      for (int64_t j = i; j < next; ++j)
        to[j].bits = stochastic_bits(from[j], philox(seed, stream, at + static_cast<uint64_t>(j - i)).v[0]);
    }
  });
}

}  // namespace ltrain::LT_ISA
