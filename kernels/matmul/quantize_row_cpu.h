// Quantization of runs of elements to FP8, and their largest magnitudes. Only for *_cpu.cpp files.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/tensor/dtype.h"
#include "kernels/tensor/fp8.h"

namespace ltrain::LT_ISA {
namespace {

/// Bits of |v|. Their order is the order of the magnitudes, with NaN last.
inline uint32_t magnitude(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  return u & 0x7fffffffu;
}

inline void raise(float* amax, uint32_t found) {
  uint32_t have = 0;
  std::atomic_ref<float> at(*amax);
  float old = at.load(std::memory_order_relaxed);
  for (;;) {
    std::memcpy(&have, &old, 4);
    if (found <= have) return;
    float value;
    std::memcpy(&value, &found, 4);
    if (at.compare_exchange_weak(old, value, std::memory_order_relaxed)) return;
  }
}

template <class E, class T>
void encode(uint8_t* to, const T* x, int64_t n, float inverse) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = E::to(static_cast<float>(get(x, i)) * inverse);
}

template <class T>
uint32_t largest(const T* x, int64_t n) {
  uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude(static_cast<float>(get(x, i))));
  return most;
}

}  // namespace
}  // namespace ltrain::LT_ISA
