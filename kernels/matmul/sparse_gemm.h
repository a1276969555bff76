// Sizes of the buffers of matmuls that skip zeros (matmul_sparse.h), also used by the plan.
#pragma once
#include "kernels/matmul/packed_gemm.h"

namespace ltrain {

/// Block sizes: rows of a (an upper bound: kRows depends on the instruction set), columns of b, and depth of
/// k. Rows times depth are 32 KiB, for the L1 cache; the sums of a block are 512 KiB.
inline constexpr int64_t kSparseRows = 128, kSparseCols = 1024, kSparseDepth = 64;
/// Fewest rows of a for which skipping zeros pays for finding them.
inline constexpr int64_t kFewestSparseRows = 128;
/// Share of nonzeros from which on it does not pay (docs/optimizers.md#sparse-matmuls).
inline constexpr double kDenseShare = 0.75;

/// Bytes that a thread holds for a matmul (m, n, k) that skips zeros of b: rows of a, nonzeros of b with
/// their offsets, and sums. The sizes do not depend on the zeros.
constexpr std::array<int64_t, 3> sparse_pack_bytes(int64_t n, int64_t k) {
  const int64_t cols = std::min(kSparseCols, up_to_multiple(n, 16)), depth = pack_depth(k);
  const int64_t values = cols * depth * 4 + kPackOver, offsets = cols * depth * 2 + kPackOver;
  const int64_t counts = cols * (depth / 16);
  return {kSparseRows * depth * 4 + kPackOver, values + offsets + counts, kSparseRows * cols * 4};
}

}  // namespace ltrain
