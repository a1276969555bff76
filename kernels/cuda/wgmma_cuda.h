// Matrix operations of a warpgroup on Hopper's (sm_90a) tensor cores: m64nNk16 of 16-bit types into float,
// asynchronous. Two implementations, as in matrix_cuda.h. The emulated one (emulated_hopper_cuda.cpp) is as
// late as the device may be: accumulators are NaN until they are waited for, and operands are read at that
// time, from registers too. A change of operands in shared memory after the start is an error.
//
// Warp w of the warpgroup has rows 16 w to 16 w + 15 of the left operand and of the accumulator. Its lanes
// hold them as in matrix_cuda.h: float 4 j + i of the accumulator is i of the m16n8 tile of columns from 8 j.
//
// An operand in shared memory is a tile of rows that boxes made (hopper_cuda.h): panels of 64 columns, each
// (rows, 64) with the 128-byte swizzle. The contraction runs along its rows (Along::columns: the contracted
// index runs along a row, "K-major" in the PTX manual) or along its columns (Along::rows, "MN-major").
//
// PTX manual: "Asynchronous Warpgroup Level Matrix Instructions", with its "Matrix Descriptor Format" and
// "Strides".
#pragma once
#include <type_traits>

#include "kernels/cuda/hopper_cuda.h"

namespace ltrain::cuda {

/// Direction of the contracted index in a tile.
enum class Along { columns, rows };

/// Matrix descriptor. Addresses in shared memory are shorter than the 18 bits of a descriptor's field, so
/// that `offset` can be added to the address of the tile.
inline __device__ uint64_t descriptor(const void* tile, uint32_t offset, uint32_t leading, uint32_t stride) {
  constexpr uint32_t kSwizzle128 = 1u << 30;
  const uint32_t low = (shared_address(tile) >> 4) + (offset >> 4) + (leading >> 4 << 16);
  return uint64_t{kSwizzle128 | stride >> 4} << 32 | low;
}
/// Descriptor of a tile's rows from `first` on, at 16 contracted columns from column `k` on. `tile_rows`:
/// rows of the full tile. `tile_rows` and `first` are multiples of 8.
inline __device__ uint64_t along_columns(const void* tile, int tile_rows, int first, int k) {
  const int offset = (k / kPanel * tile_rows + first) * kPanelBytes + k % kPanel * 2;
  return descriptor(tile, static_cast<uint32_t>(offset), 16, kSwizzleAtom);
}
/// Descriptor of 16 contracted rows of a tile from row `k` on, at the columns from `first` on, a multiple of
/// 64.
inline __device__ uint64_t along_rows(const void* tile, int tile_rows, int first, int k) {
  const int panel = tile_rows * kPanelBytes, offset = first / kPanel * panel + k * kPanelBytes;
  return descriptor(tile, static_cast<uint32_t>(offset), static_cast<uint32_t>(panel), kSwizzleAtom);
}

#ifdef LTRAIN_CUDA_EMULATED

struct EmulatedProduct {
  float* c;
  int n;
  bool bf16;
  const uint32_t* a;  ///< registers; null: operand in shared memory
  uint64_t a_shared, b_shared;
  Along a_along, b_along;
  bool add;
};
void emulated_product(const EmulatedProduct& p);
void wgmma_fence();
void wgmma_commit();
void emulated_wgmma_wait(size_t groups_left);
template <int groups_left>
void wgmma_wait() {
  emulated_wgmma_wait(groups_left);
}
template <int n>
void in_flight(float (&)[n]) {}

template <class T, int kN, Along kA = Along::columns, Along kB = Along::columns>
void wgmma(float (&c)[kN / 2], uint64_t a, uint64_t b, bool add) {
  emulated_product({c, kN, std::is_same_v<T, bf16>, nullptr, a, b, kA, kB, add});
}
template <class T, int kN, Along kB = Along::columns>
void wgmma(float (&c)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool add) {
  emulated_product({c, kN, std::is_same_v<T, bf16>, a, 0, b, Along::columns, kB, add});
}

#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Called before the first wgmma that reads or adds to registers written by other instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Makes the wgmmas since the last commit a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all but the last few groups.
template <int groups_left>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
}
/// Keeps the compiler from moving accesses of an accumulator across this point.
template <int n>
__device__ __forceinline__ void in_flight(float (&c)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// Accumulators, and their operand numbers in the text of an instruction.
#define LT_C8(i)                                                                              \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define LT_C32(i) LT_C8(i), LT_C8(i + 8), LT_C8(i + 16), LT_C8(i + 24)
#define LT_PLACES_32                                                                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define LT_PLACES_48 LT_PLACES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define LT_PLACES_64                                                                                  \
  LT_PLACES_32                                                                                        \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
  "%56,%57,%58,%59,%60,%61,%62,%63"
#define LT_C_64 LT_C32(0)
#define LT_C_96 LT_C32(0), LT_C8(32), LT_C8(40)
#define LT_C_128 LT_C32(0), LT_C32(32)

// x0 and following: numbers of the operands after the accumulators.
#define LT_WGMMA_SHARED(N, TYPE, PLACES, x0, x1, x2, x3, x4)                                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " x2                                                       \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" PLACES "}, " x0 ", " x1 \
               ", p, 1, 1, " x3 ", " x4 ";\n}"                                                              \
               : LT_C_##N                                                                                   \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kA == Along::rows), "n"(kB == Along::rows))
#define LT_WGMMA_REGISTERS(N, TYPE, PLACES, x0, x1, x2, x3, x4, x5, x6)                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " x5                                                       \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" PLACES "}, {" x0 "," x1 \
               "," x2 "," x3 "}, " x4 ", p, 1, 1, " x6 ";\n}"                                               \
               : LT_C_##N                                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),            \
                 "n"(kB == Along::rows))

/// c = a b, or c += a b with `add`: both operands in shared memory, by descriptor.
template <class T, int kN, Along kA = Along::columns, Along kB = Along::columns>
__device__ __forceinline__ void wgmma(float (&c)[kN / 2], uint64_t a, uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 96 || kN == 128);
  if constexpr (kN == 64 && std::is_same_v<T, bf16>)
    LT_WGMMA_SHARED(64, "bf16", LT_PLACES_32, "%32", "%33", "%34", "%35", "%36");
  else if constexpr (kN == 64)
    LT_WGMMA_SHARED(64, "f16", LT_PLACES_32, "%32", "%33", "%34", "%35", "%36");
  else if constexpr (kN == 96 && std::is_same_v<T, bf16>)
    LT_WGMMA_SHARED(96, "bf16", LT_PLACES_48, "%48", "%49", "%50", "%51", "%52");
  else if constexpr (kN == 96)
    LT_WGMMA_SHARED(96, "f16", LT_PLACES_48, "%48", "%49", "%50", "%51", "%52");
  else if constexpr (std::is_same_v<T, bf16>)
    LT_WGMMA_SHARED(128, "bf16", LT_PLACES_64, "%64", "%65", "%66", "%67", "%68");
  else
    LT_WGMMA_SHARED(128, "f16", LT_PLACES_64, "%64", "%65", "%66", "%67", "%68");
}
/// wgmma with the left operand in registers, which must not change until it was waited for.
template <class T, int kN, Along kB = Along::columns>
__device__ __forceinline__ void wgmma(float (&c)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 96 || kN == 128);
  if constexpr (kN == 64 && std::is_same_v<T, bf16>)
    LT_WGMMA_REGISTERS(64, "bf16", LT_PLACES_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38");
  else if constexpr (kN == 64)
    LT_WGMMA_REGISTERS(64, "f16", LT_PLACES_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38");
  else if constexpr (kN == 96 && std::is_same_v<T, bf16>)
    LT_WGMMA_REGISTERS(96, "bf16", LT_PLACES_48, "%48", "%49", "%50", "%51", "%52", "%53", "%54");
  else if constexpr (kN == 96)
    LT_WGMMA_REGISTERS(96, "f16", LT_PLACES_48, "%48", "%49", "%50", "%51", "%52", "%53", "%54");
  else if constexpr (std::is_same_v<T, bf16>)
    LT_WGMMA_REGISTERS(128, "bf16", LT_PLACES_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70");
  else
    LT_WGMMA_REGISTERS(128, "f16", LT_PLACES_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70");
}

#undef LT_C8
#undef LT_C32
#undef LT_PLACES_32
#undef LT_PLACES_48
#undef LT_PLACES_64
#undef LT_C_64
#undef LT_C_96
#undef LT_C_128
#undef LT_WGMMA_SHARED
#undef LT_WGMMA_REGISTERS

#endif

}  // namespace ltrain::cuda
