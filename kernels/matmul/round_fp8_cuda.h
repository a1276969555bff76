// Quantization to FP8 in kernels, and largest magnitudes over a grid.
#pragma once
#include "kernels/cuda/pack_cuda.h"
#include "kernels/tensor/fp8.h"

namespace ltrain::cuda {

// most blocks of a kernel with a largest magnitude: one atomic maximum each
constexpr int64_t kMaxBlocks = 4096;

inline __device__ uint32_t magnitude(float v) { return fp8::bits_of(v) & 0x7fffffffu; }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kRoundsPairsTo = true;
template <class E>
__device__ __forceinline__ uint32_t round_pair_to(float a, float b) {
  uint16_t both;
  if constexpr (std::is_same_v<E, E4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  }
  return both;
}
/// Not inlined, so that the rare case costs no instructions in the common one.
template <class E>
__device__ __noinline__ uint8_t round_rare(float v) {
  return E::to(v);
}
#else
constexpr bool kRoundsPairsTo = false;
template <class E>
__device__ uint32_t round_pair_to(float, float);  // never called
template <class E>
__device__ uint8_t round_rare(float v);
#endif

/// codes = v * inverse, rounded; `most` = max(most, largest magnitude of v).
template <class E, int N>
__device__ __forceinline__ void round_to(uint8_t* codes, float* v, float inverse, uint32_t& most) {
  float poison = 0;  // NaN if any value is not finite: the instruction has no code for it
  for (int j = 0; j < N; ++j) {
    most = Max()(most, magnitude(v[j]));
    v[j] *= inverse;
    poison += v[j] * 0.0f;
  }
  if constexpr (kRoundsPairsTo && N % 2 == 0) {
    if (poison == 0) {
      for (int j = 0; j < N; j += 2) {
        const uint32_t both = round_pair_to<E>(v[j], v[j + 1]);
        codes[j] = static_cast<uint8_t>(both);
        codes[j + 1] = static_cast<uint8_t>(both >> 8);
      }
    } else {
      for (int j = 0; j < N; ++j) codes[j] = round_rare<E>(v[j]);
    }
  } else {
    for (int j = 0; j < N; ++j) codes[j] = E::to(v[j]);
  }
}

/// round_to for R rows, with one test for non-finite values.
template <class E, int R, int N>
__device__ __forceinline__ void round_rows(uint8_t (*codes)[N], float (*v)[N], float inverse,
                                           uint32_t& most) {
  if constexpr (kRoundsPairsTo && N % 2 == 0) {
    uint32_t here = 0;
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < N; ++j) here = Max()(here, magnitude(v[r][j]));
    most = Max()(most, here);
    // If the largest magnitude and its product with `inverse` are finite, all products are.
    if (fp8::finite(fp8::float_of(here)) && fp8::finite(fp8::float_of(here) * inverse)) {
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < N; j += 2) {
          const uint32_t both = round_pair_to<E>(v[r][j] * inverse, v[r][j + 1] * inverse);
          codes[r][j] = static_cast<uint8_t>(both);
          codes[r][j + 1] = static_cast<uint8_t>(both >> 8);
        }
      return;
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < N; ++j) codes[r][j] = round_rare<E>(v[r][j] * inverse);
  } else {
    for (int r = 0; r < R; ++r) round_to<E, N>(codes[r], v[r], inverse, most);
  }
}

template <int N, class T>
__device__ __forceinline__ void load_floats(float* v, const T* x, int64_t i) {
  compute_t<T> wide[N];
  load_values<N>(wide, x, i);
  for (int j = 0; j < N; ++j) v[j] = static_cast<float>(wide[j]);
}

/// amax = max(amax, largest magnitude of the block, as bits). Bits of magnitudes have the order of the
/// magnitudes, and a maximum does not depend on the order of blocks.
inline __device__ void keep_largest(float* amax, uint32_t most, uint32_t* scratch) {
  most = block_reduce(most, Max(), 0u, scratch);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(amax), most);
}

/// Stores codes[i ..] of v after rounding v to T.
template <class T, int N>
__device__ __forceinline__ void store_rounded(uint8_t* codes, int64_t i, const compute_t<T>* v, float inverse,
                                              uint32_t& most) {
  compute_t<T> kept[N];
  if constexpr (N % kPackOf<T> == 0) {
    for (int k = 0; k < N; k += kPackOf<T>) unpack(kept + k, rounded<T, kPackOf<T>>(v + k));
  } else {
    unpack(kept, rounded<T, N>(v));
  }
  float wide[N];
  for (int j = 0; j < N; ++j) wide[j] = static_cast<float>(kept[j]);
  Pack<uint8_t, N> c;
  round_to<E4m3, N>(c.v, wide, inverse, most);
  store(codes, i, c);
}

}  // namespace ltrain::cuda
