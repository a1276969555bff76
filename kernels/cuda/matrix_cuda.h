// Matrix operations of a warp on tensor cores: m16n8k16 of 16-bit types into float, and the loads that feed
// it. Two implementations: PTX (sm_80 and newer), and one that follows the layouts of the PTX manual ("Matrix
// Fragments for mma.m16n8k16", "ldmatrix") lane by lane, for tests without a GPU.
//
// Lane l of a warp holds, with g = l / 4 and t = l % 4:
//   left operand (16 x 16), four words:   (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
//   right operand (16 x 8), two words:    (2t, g), (2t + 8, g)
//   accumulator (16 x 8), four floats:    (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// A word of an operand is two elements, the second one further along the contracted dim. Two adjacent
// accumulators are therefore, packed, a left operand.
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {

#ifdef LTRAIN_CUDA_EMULATED

template <class T>
uint32_t pack_pair(float low, float high) {
  const T pair[2] = {T(low), T(high)};
  uint32_t word;
  __builtin_memcpy(&word, pair, 4);
  return word;
}

template <class T>
void put_pair(T* to, float low, float high) {
  LT_CHECK(reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0,
           "expected an aligned pair of {}-byte elements, got address {}", sizeof(T),
           static_cast<const void*>(to));
  to[0] = T(low), to[1] = T(high);
}

inline float exp2_fast(float x) { return std::exp2(x); }

/// Loads four matrices for a warp: from matrix i a lane gets two elements of row g (transposed: rows 2t and
/// 2t + 1 of column g). Lanes pass the address of a row and the address of their result.
template <bool kTransposed>
void load_together(const WarpWords& of) {
  const auto element = [&](size_t matrix, size_t r, size_t c) {
    return uint32_t{reinterpret_cast<const uint16_t*>(of[8 * matrix + r][0])[c]};
  };
  for (size_t lane = 0; lane < kWarp; ++lane) {
    const size_t as = emulated_lanes_swapped && (lane == 5 || lane == 6) ? 11 - lane : lane;
    const size_t g = as / 4, t = as % 4;
    uint32_t* const to = reinterpret_cast<uint32_t*>(of[lane][1]);
    for (size_t i = 0; i < 4; ++i)
      to[i] = kTransposed ? element(i, 2 * t, g) | element(i, 2 * t + 1, g) << 16
                          : element(i, g, 2 * t) | element(i, g, 2 * t + 1) << 16;
  }
}
template <bool kTransposed>
void emulated_load(uint32_t (&to)[4], const void* row) {
  LT_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0,
           "expected a 16-byte aligned row of a matrix, got address {}", row);
  emulated_together({reinterpret_cast<uintptr_t>(row), reinterpret_cast<uintptr_t>(&to)},
                    load_together<kTransposed>);
}
inline void load_matrices(uint32_t (&to)[4], const void* row) { emulated_load<false>(to, row); }
inline void load_transposed(uint32_t (&to)[4], const void* row) { emulated_load<true>(to, row); }

/// mma.sync of a warp. Lanes pass their words of both operands and the address of their part of the
/// accumulator.
template <class T>
void multiply_together(const WarpWords& of) {
  float a[16][16], b[16][8], sum[16][8];
  const auto take = [](uint32_t word, float& low, float& high) {
    T pair[2];
    __builtin_memcpy(static_cast<void*>(pair), &word, 4);
    low = static_cast<float>(pair[0]), high = static_cast<float>(pair[1]);
  };
  const auto word = [&](size_t lane, size_t i) {
    return static_cast<uint32_t>(of[lane][i / 2] >> i % 2 * 32);
  };
  const auto accumulator = [&](size_t lane) { return reinterpret_cast<float*>(of[lane][3]); };
  for (size_t lane = 0; lane < kWarp; ++lane) {
    const size_t g = lane / 4, t = lane % 4;
    for (size_t i = 0; i < 4; ++i) {
      float* const to = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
      take(word(lane, i), to[0], to[1]);
      sum[g + i / 2 * 8][2 * t + i % 2] = accumulator(lane)[i];
    }
    for (size_t i = 0; i < 2; ++i) take(word(lane, 4 + i), b[2 * t + 8 * i][g], b[2 * t + 8 * i + 1][g]);
  }
  for (size_t r = 0; r < 16; ++r)
    for (size_t k = 0; k < 16; ++k)
      for (size_t c = 0; c < 8; ++c) sum[r][c] += a[r][k] * b[k][c];
  for (size_t lane = 0; lane < kWarp; ++lane)
    for (size_t i = 0; i < 4; ++i) accumulator(lane)[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
template <class T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto both = [](uint32_t low, uint32_t high) { return uint64_t{low} | uint64_t{high} << 32; };
  emulated_together({both(a[0], a[1]), both(a[2], a[3]), both(b0, b1), reinterpret_cast<uintptr_t>(&c)},
                    multiply_together<T>);
}

inline void copy_async_16(void* shared, const void* from, bool there) {
  emulated_copy(shared, there ? from : nullptr, 16);
}
inline void copy_async_4(void* shared, const void* from, bool there) {
  emulated_copy(shared, there ? from : nullptr, 4);
}
inline void commit_copies() { emulated_commit(); }
inline void wait_for_copies() { emulated_wait(0); }
template <int groups_left>
void wait_for_older_copies() {
  emulated_wait(groups_left);
}

#else

template <class T>
struct Tensor16;  ///< instructions for a 16-bit type
template <>
struct Tensor16<bf16> {
  static __device__ uint32_t pack(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
  static __device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Tensor16<f16> {
  static __device__ uint32_t pack(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
  static __device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  return Tensor16<T>::pack(low, high);
}

/// Stores two neighbouring elements at once; `to` is aligned to both.
template <class T>
__device__ __forceinline__ void put_pair(T* to, float low, float high) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
  } else {
    *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(low, high);
  }
}

/// 2^x; 0 for -infinity. Subnormal results are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Loads four 8 x 8 matrices. Lane l passes the 16-byte aligned address of row l % 8 of matrix l / 8 in
/// shared memory.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
/// load_matrices with each matrix transposed.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// c += a b
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  Tensor16<T>::multiply_add(c, a, b0, b1);
}

/// Starts a copy into shared memory; zeros unless `there`. `from` is a valid address in any case.
__device__ __forceinline__ void copy_async_16(void* shared, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(void* shared, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for this thread's copies. A barrier afterwards makes those of all threads visible to all.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
/// Waits for all but the last few groups.
template <int groups_left>
__device__ __forceinline__ void wait_for_older_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

#endif

/// Element offset of 16 bytes of a row in a tile of shared memory with rows of kDim two-byte elements. Chunks
/// of a row are swizzled so that the eight rows of a matrix are in different banks.
template <int kDim>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * kDim + (chunk ^ (kDim % 64 == 0 ? row & 7 : (row >> 1) & 3)) * 8;
}

}  // namespace ltrain::cuda
