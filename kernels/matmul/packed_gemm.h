// Sizes of what packed products copy (packed_gemm_cpu.h), which are those of the plan.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace ltrain {

/// Rows of a, columns of b and sums of a product that are packed at a time: a's block is 672 KiB, for second
/// caches of 1 MiB and more, all of b's 4 MiB.
inline constexpr int64_t kRowBlock = 336, kColBlock = 2048, kDepthBlock = 512;
/// Of a result of 16 bits, whose sums wait in f32.
inline constexpr int64_t kHalfRows = 1024, kHalfCols = 1024;
/// Common multiples of the tiles' sides of all instruction sets.
inline constexpr int64_t kPackTileRows = 42, kPackTileCols = 32;

/// Bytes past its last panel that packing may write.
inline constexpr int64_t kPackOver = 64;

/// Sums of one block of k: blocks are alike, and multiples of 16.
constexpr int64_t pack_depth(int64_t k) {
  const int64_t blocks = std::max<int64_t>(1, (k + kDepthBlock - 1) / kDepthBlock);
  return ((k + blocks - 1) / blocks + 15) / 16 * 16;
}

/// Of k elements that are summed over, so many in a panel: by pairs half of them.
constexpr int64_t pack_sums(int64_t k, bool pairs) { return pairs ? (k + 1) / 2 : k; }

constexpr int64_t up_to_multiple(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

/// Bytes that a thread holds for a product (m, n, k), k being pack_sums: panels of a, of b, and sums of a
/// result of 16 bits. Each is kept at the largest size that any product needed.
constexpr std::array<int64_t, 3> pack_bytes(int64_t m, int64_t n, int64_t k, bool half_result) {
  const int64_t cols = half_result ? kHalfCols : kColBlock;
  return {std::min(kRowBlock, up_to_multiple(m, kPackTileRows)) * pack_depth(k) * 4 + kPackOver,
          std::min(cols, up_to_multiple(n, kPackTileCols)) * pack_depth(k) * 4 + kPackOver,
          half_result ? std::min(kHalfRows, m) * std::min(kHalfCols, n) * 4 : 0};
}

}  // namespace ltrain
