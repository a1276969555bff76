#include "kernels/matmul/nf4.h"

#include <cstring>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kGrain = 256;  // blocks worth a thread

/// Largest magnitude. Bits of floats without the sign are in the order of the magnitudes, NaN last.
float largest(const float* values) {
  uint32_t most = 0;
  for (int64_t i = 0; i < kNf4Block; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, 4);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  float m;
  std::memcpy(&m, &most, 4);
  return m;
}

}  // namespace

void nf4_dequantize_cpu(DType t, void* w, const uint8_t* codes, const float* absmax, int64_t n) {
  float levels[16];
  for (int i = 0; i < 16; ++i) levels[i] = nf4_level(i);
  dispatch_float(t, [&]<class T>() {
    parallel_for(n / kNf4Block, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const uint8_t* from = codes + block * (kNf4Block / kNf4Pair);
        T* to = static_cast<T*>(w) + block * kNf4Block;
        const float by = absmax[block];
        for (int64_t i = 0; i < kNf4Block / kNf4Pair; ++i) {
          put(to, 2 * i, static_cast<compute_t<T>>(levels[from[i] >> 4] * by));
          put(to, 2 * i + 1, static_cast<compute_t<T>>(levels[from[i] & 15] * by));
        }
      }
    });
  });
}

void nf4_quantize_cpu(uint8_t* codes, float* absmax, const float* values, int64_t n) {
  constexpr float kLeast = 1e-38f;  // its inverse is finite; so a block of zeros has the code of 0
  float above[15];                  // a value above above[i] has a code above i
  for (int i = 0; i < 15; ++i) above[i] = (nf4_level(i) + nf4_level(i + 1)) / 2;
  parallel_for(n / kNf4Block, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const float* from = values + block * kNf4Block;
      const float most = largest(from), inverse = 1.0f / (most > kLeast ? most : kLeast);
      int32_t code[kNf4Block] = {};
      for (int64_t i = 0; i < kNf4Block; ++i) {
        const float x = from[i] * inverse;
        for (const float limit : above) code[i] += x > limit;
      }
      absmax[block] = most;
      uint8_t* to = codes + block * (kNf4Block / kNf4Pair);
      for (int64_t i = 0; i < kNf4Block / kNf4Pair; ++i)
        to[i] = static_cast<uint8_t>(code[2 * i] << 4 | code[2 * i + 1]);
    }
  });
}

}  // namespace ltrain::LT_ISA
