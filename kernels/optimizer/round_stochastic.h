// Stochastic rounding up or down, with the number itself as the mean of the result: bf16 parameters train
// without an fp32 copy (arXiv:2010.06192).
#pragma once
#include <cstring>

#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Elements of a named tensor in an array: those of a box from `begin` on, in row-major order.
struct BoxElements {
  int rank = 1;
  int64_t global[5] = {1}, offset[5] = {}, extent[5] = {1};
  int64_t begin = 0;

  /// Index of element i in the full tensor.
  LT_HD int64_t index(int64_t i) const {
    int64_t local = begin + i, at = 0, stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      at += (offset[d] + local % extent[d]) * stride;
      local /= extent[d];
      stride *= global[d];
    }
    return at;
  }
};

/// Bits of bf16 for v: rounded up with the probability of the truncated fraction, decided by the upper half
/// of `random`.
LT_HD inline uint16_t stochastic_bits(float v, uint32_t random) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  const uint32_t moved = (u + (random >> 16)) >> 16, special = (u >> 16) | ((u & 0x7fffffu) ? 0x40u : 0u);
  return static_cast<uint16_t>((u & 0x7f800000u) == 0x7f800000u ? special : moved);
}

/// out = in, stochastically rounded: bf16 (n) from f32 (n). The random number of an element is a function of
/// seed, stream and its index in the full tensor.
void round_stochastic(Stream& s, Tensor out, Tensor in, uint64_t seed, uint64_t stream,
                      const BoxElements& elements);

LT_KERNEL(round_stochastic, void* out, const void* in, int64_t n, uint64_t seed, uint64_t stream,
          BoxElements elements)

}  // namespace ltrain
