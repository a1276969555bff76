// A tile of one-byte codes that a block of threads transposes through shared memory.
#pragma once
#include "kernels/cuda/pack_cuda.h"

namespace ltrain::cuda {

/// Four bytes of b a, each by its place in four bits of `order`, the lowest first.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t order) {
#ifdef __CUDA_ARCH__
  return __byte_perm(a, b, order);
#else
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<uint32_t>((uint64_t{b} << 32 | a) >> 8 * (order >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
#endif
}

/// kSide rows and columns: columns of 32 words with four rows each, in chunks of four words. The order of the
/// chunks depends on the column, so that loads of a chunk have no bank conflicts and stores have at most
/// two-way conflicts.
struct CodeTile {
  static constexpr int kSide = 128, kPack = 16;  // kPack: codes in 16 bytes
  static constexpr int kColumn = kSide / 4;      // words of a column
  static constexpr int64_t kBytes = kSide * kSide;
  uint32_t* words;

  /// First word of the chunk with rows 16 chunk ..
  __device__ __forceinline__ uint32_t* place(int col, int chunk) const {
    return words + col * kColumn + 4 * (chunk ^ (col / 8 % 8));
  }
  /// Memory behind the tile.
  __device__ __forceinline__ uint32_t* end() const { return words + kSide * kColumn; }
  /// Stores codes, four in a word, of four rows from 4 quad on and eight columns from `col` on, a multiple of
  /// eight.
  __device__ __forceinline__ void put(int col, int quad, const uint32_t (*c)[2]) const {
    uint32_t* const to = place(col, quad / 4) + quad % 4;
    for (int h = 0; h < 2; ++h) {
      const uint32_t low[2] = {pick_bytes(c[0][h], c[1][h], 0x5140), pick_bytes(c[2][h], c[3][h], 0x5140)};
      const uint32_t high[2] = {pick_bytes(c[0][h], c[1][h], 0x7362), pick_bytes(c[2][h], c[3][h], 0x7362)};
      to[(4 * h + 0) * kColumn] = pick_bytes(low[0], low[1], 0x5410);
      to[(4 * h + 1) * kColumn] = pick_bytes(low[0], low[1], 0x7632);
      to[(4 * h + 2) * kColumn] = pick_bytes(high[0], high[1], 0x5410);
      to[(4 * h + 3) * kColumn] = pick_bytes(high[0], high[1], 0x7632);
    }
  }
  /// Stores column c of the tile to row line_of(c) of `transposed`, (.., rows), from its column r0 on;
  /// negative: not at all. rows is a multiple of kPack.
  template <int kThreads, class F>
  __device__ __forceinline__ void store_transposed(uint8_t* transposed, int64_t rows, int64_t r0,
                                                   F line_of) const {
    constexpr int kChunks = kSide / kPack, kStride = kThreads / kChunks;  // columns at a time
    static_assert(kStride % 32 == 0 && kSide % kStride == 0);
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
    const int64_t row = r0 + chunk * kPack;
    if (row >= rows) return;
    const uint32_t* const even = place(first, chunk);
    const uint32_t* const odd = place(first, chunk ^ 4) + 32 * kColumn;  // place(first + 32, chunk)
#pragma unroll
    for (int n = 0; n < kSide; n += kStride) {
      const int64_t line = line_of(first + n);
      if (line < 0) continue;
      store(reinterpret_cast<uint32_t*>(transposed + line * rows + row), 0,
            *reinterpret_cast<const Pack<uint32_t, 4>*>(n % 64 == 0 ? even + n * kColumn
                                                                    : odd + (n - 32) * kColumn));
    }
  }
};

/// Stores codes, four in a word, of four rows from `row` on and eight columns from `col` on.
__device__ __forceinline__ void store_rows(uint8_t* codes, int64_t row, int64_t col, int64_t cols,
                                           const uint32_t (*c)[2]) {
  for (int k = 0; k < 4; ++k)
    store(reinterpret_cast<uint32_t*>(codes + (row + k) * cols + col), 0,
          Pack<uint32_t, 2>{{c[k][0], c[k][1]}});
}

}  // namespace ltrain::cuda
