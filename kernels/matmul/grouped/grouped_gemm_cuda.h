// Code shared by the grouped GEMM kernels of a GPU (grouped_gemm.h): the tile of a block, and the store of
// its output.
#pragma once
#include "kernels/cuda/pack_cuda.h"
#include "kernels/matmul/grouped/grouped_gemm.h"

namespace ltrain::cuda {

/// Tile of a block: its group, and its position in the group's output.
struct GroupTile {
  int64_t row;     ///< first row of the group
  int64_t matrix;  ///< index of the group's matrix
  int rows;        ///< rows of the group
  int from_row, from_col;

  /// tile < table.tiles. result_rows: rows of a group's output if they differ from the rows of the group,
  /// else 0.
  __device__ GroupTile(const GroupTable& table, int tile, int result_rows, int tile_rows, int tile_cols) {
    int low = 0, high = table.groups;  // searches for the last group that begins at or before the tile
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (table.first_tile[middle] <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    row = table.row[low], matrix = table.group[low], rows = table.rows[low];
    const int down = ((result_rows > 0 ? result_rows : rows) + tile_rows - 1) / tile_rows;
    const int in_group = tile - table.first_tile[low];
    from_row = in_group % down * tile_rows, from_col = in_group / down * tile_cols;
  }
};

/// Element offset of 16 bytes of a row of an output tile in shared memory. Rows that lanes write together are
/// in different banks.
template <class O, int kCols>
__device__ __forceinline__ int result_place(int row, int chunk) {
  constexpr int kChunk = 16 / static_cast<int>(sizeof(O));
  return row * kCols + (chunk ^ (sizeof(O) == 2 ? row & 7 : (row & 3) * 2)) * kChunk;
}

/// Writes an output tile from shared memory, in the layout of result_place(), 16 bytes at a time: its first
/// `rows` rows and `cols` columns. `cols` is a multiple of 16 bytes.
template <int kRows, int kCols, int kThreads, class O>
__device__ __forceinline__ void write_result(O* to, int64_t stride, const O* tile, int thread, int rows,
                                             int cols, bool accumulate) {
  constexpr int kChunk = 16 / static_cast<int>(sizeof(O)), kChunks = kCols / kChunk;
  constexpr int kAtOnce = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kAtOnce == 0);
  const int chunk = thread % kChunks, first = thread / kChunks;
  if (chunk * kChunk >= cols) return;
#pragma unroll 4
  for (int row = first; row < rows && row < kRows; row += kAtOnce) {
    auto v = *reinterpret_cast<const Pack<O, kChunk>*>(tile + result_place<O, kCols>(row, chunk));
    O* const at = to + row * stride + chunk * kChunk;
    if constexpr (sizeof(O) == 4) {
      if (accumulate) {
        const auto before = load<O, kChunk>(at, 0);
        for (int i = 0; i < kChunk; ++i) v.v[i] += before.v[i];
      }
    }
    store<O, kChunk>(at, 0, v);
  }
}

/// Calls f with the 16-bit type.
template <class F>
void with_gemm_type(DType t, F&& f) {
  LT_CHECK(is_half(t), "grouped GEMM on tensor cores: expected bf16 or f16, got {}", dtype_name(t));
  t == DType::bf16 ? f.template operator()<bf16>() : f.template operator()<f16>();
}

}  // namespace ltrain::cuda
