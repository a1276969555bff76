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
/// Codes of four values, the first in the lowest byte.
template <class E>
__device__ __forceinline__ uint32_t round_four_to(float a, float b, float c, float d) {
  uint32_t four;
  if constexpr (std::is_same_v<E, E4m3>) {
    asm("{.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  } else {
    asm("{.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  }
  return four;
}
/// Not inlined, so that the rare case costs no instructions in the common one.
template <class E>
__device__ __noinline__ uint8_t round_rare(float v) {
  return E::to(v);
}
template <class E>
__device__ __noinline__ uint32_t round_four_rare(float a, float b, float c, float d) {
  return static_cast<uint32_t>(E::to(a)) | static_cast<uint32_t>(E::to(b)) << 8 |
         static_cast<uint32_t>(E::to(c)) << 16 | static_cast<uint32_t>(E::to(d)) << 24;
}
template <class E, class T>
__device__ __noinline__ uint32_t round_pack_rare(Pack<T, 4> pack, float inverse) {
  float v[4];
  unpack(v, pack);
  uint32_t codes = 0;
  for (int j = 0; j < 4; ++j) codes |= static_cast<uint32_t>(E::to(v[j] * inverse)) << 8 * j;
  return codes;
}
/// Larger magnitude in each half of two words of 16-bit values, NaN if one is; a has no signs.
template <class T>
__device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t b) {
  uint32_t larger;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("{.reg .b32 size;\n"
        "abs.bf16x2 size, %2;\n"
        "max.NaN.bf16x2 %0, %1, size;}"
        : "=r"(larger)
        : "r"(a), "r"(b));
  } else {
    asm("{.reg .b32 size;\n"
        "abs.f16x2 size, %2;\n"
        "max.NaN.f16x2 %0, %1, size;}"
        : "=r"(larger)
        : "r"(a), "r"(b));
  }
  return larger;
}
#else
constexpr bool kRoundsPairsTo = false;
template <class E>
__device__ uint32_t round_pair_to(float, float);  // never called
template <class E>
__device__ uint32_t round_four_to(float, float, float, float);  // never called
template <class E>
__device__ uint8_t round_rare(float v);
template <class E>
__device__ uint32_t round_four_rare(float, float, float, float);
template <class E, class T>
__device__ uint32_t round_pack_rare(Pack<T, 4>, float);
template <class T>
__device__ uint32_t larger_pair(uint32_t, uint32_t);
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

/// True if all products of `inverse` with values up to the magnitude `most` are finite.
__device__ __forceinline__ bool rounds_by_instruction(uint32_t most, float inverse) {
  return fp8::finite(fp8::float_of(most)) && fp8::finite(fp8::float_of(most) * inverse);
}

/// round_to for R rows, with one test for non-finite values. Four codes in a word.
template <class E, int R, int N>
__device__ __forceinline__ void round_rows(uint32_t (*codes)[N / 4], float (*v)[N], float inverse,
                                           uint32_t& most) {
  if constexpr (kRoundsPairsTo) {
    uint32_t here = 0;
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < N; ++j) here = Max()(here, magnitude(v[r][j]));
    most = Max()(most, here);
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < N; ++j) v[r][j] *= inverse;
    const bool rare = !rounds_by_instruction(here, inverse);
    const auto round = [&](auto four) {
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < N; j += 4) codes[r][j / 4] = four(v[r][j], v[r][j + 1], v[r][j + 2], v[r][j + 3]);
    };
    rare ? round(round_four_rare<E>) : round(round_four_to<E>);
  } else {
    for (int r = 0; r < R; ++r) {
      uint8_t c[N];
      round_to<E, N>(c, v[r], inverse, most);
      memcpy(codes[r], c, N);
    }
  }
}

/// round_rows for packs of 16-bit values, whose magnitudes are compared two at a time.
template <class E, int R, class T>
__device__ __forceinline__ void round_packs(uint32_t (*codes)[2], const Pack<T, 8>* packs, float inverse,
                                            uint32_t& most) {
  if constexpr (kRoundsPairsTo) {
    uint32_t pair = 0;
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < 8; j += 2) {
        uint32_t both;
        memcpy(&both, &packs[r].v[j], 4);
        pair = larger_pair<T>(pair, both);
      }
    Pack<T, 2> halves;
    memcpy(&halves, &pair, 4);
    float largest[2];
    unpack(largest, halves);
    const uint32_t here = Max()(magnitude(largest[0]), magnitude(largest[1]));
    most = Max()(most, here);
    if (rounds_by_instruction(here, inverse)) {
      for (int r = 0; r < R; ++r) {
        float v[8];
        unpack(v, packs[r]);
        for (int j = 0; j < 8; ++j) v[j] *= inverse;
        for (int j = 0; j < 8; j += 4) codes[r][j / 4] = round_four_to<E>(v[j], v[j + 1], v[j + 2], v[j + 3]);
      }
    } else {
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < 8; j += 4) {
          Pack<T, 4> four;
          memcpy(&four, &packs[r].v[j], sizeof(four));
          codes[r][j / 4] = round_pack_rare<E>(four, inverse);
        }
    }
  } else {
    float v[R][8];
    for (int r = 0; r < R; ++r) unpack(v[r], packs[r]);
    round_rows<E, R, 8>(codes, v, inverse, most);
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
