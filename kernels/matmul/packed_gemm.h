// Sizes of the packing buffers of packed matmuls (packed_gemm_cpu.h), also used by the plan.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace ltrain {

/// Rows of a, columns of b and depth of k that are packed at a time. The block of a is 672 KiB, for L2 caches
/// of 1 MiB and more; the block of b is 4 MiB.
inline constexpr int64_t kRowBlock = 336, kColBlock = 2048, kDepthBlock = 512;
/// Block of a 16-bit output, with sums kept in f32.
inline constexpr int64_t kHalfRows = 1024, kHalfCols = 1024;
/// Common multiples of the tile sizes of all instruction sets.
inline constexpr int64_t kPackTileRows = 42, kPackTileCols = 32;

/// Bytes beyond the last panel that packing may write.
inline constexpr int64_t kPackOver = 64;

/// Depth of one block of k. Blocks are of equal size, a multiple of 16.
constexpr int64_t pack_depth(int64_t k) {
  const int64_t blocks = std::max<int64_t>(1, (k + kDepthBlock - 1) / kDepthBlock);
  return ((k + blocks - 1) / blocks + 15) / 16 * 16;
}

/// Entries of a panel for k elements along the contraction: half as many with pairs.
constexpr int64_t pack_sums(int64_t k, bool pairs) { return pairs ? (k + 1) / 2 : k; }

constexpr int64_t up_to_multiple(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

/// Bytes that a thread holds for a matmul (m, n, k), with k = pack_sums: panels of a, panels of b, and f32
/// sums of a 16-bit output. Each buffer keeps its largest size.
constexpr std::array<int64_t, 3> pack_bytes(int64_t m, int64_t n, int64_t k, bool half_result) {
  const int64_t cols = half_result ? kHalfCols : kColBlock;
  return {std::min(kRowBlock, up_to_multiple(m, kPackTileRows)) * pack_depth(k) * 4 + kPackOver,
          std::min(cols, up_to_multiple(n, kPackTileCols)) * pack_depth(k) * 4 + kPackOver,
          half_result ? std::min(kHalfRows, m) * std::min(kHalfCols, n) * 4 : 0};
}

}  // namespace ltrain
