// Sums over the rows of a matrix, column by column, in an order that depends on the shape alone: gradients of
// biases and of norm weights.
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {

constexpr int kColumnThreads = 128;
constexpr int64_t kMostRowChunks = 64;

/// Rows are cut into this many chunks, each with partial sums of its own.
inline int64_t row_chunks(int64_t rows) { return std::clamp<int64_t>(rows / 32, 1, kMostRowChunks); }

/// partial[chunk, col] = sum over the chunk's rows of element(row, col).
template <class A, class E>
__global__ void partial_column_sums(A* partial, E element, int64_t rows, int64_t cols) {
  const int64_t chunk = blockIdx.y, chunks = gridDim.y;
  const int64_t begin = rows * chunk / chunks, end = rows * (chunk + 1) / chunks;
  for (int64_t col = grid_thread(); col < cols; col += grid_stride()) {
    A sum = 0;
    for (int64_t row = begin; row < end; ++row) sum += element(row, col);
    partial[chunk * cols + col] = sum;
  }
}

template <class A>
__global__ void add_chunks(A* out, const A* partial, int64_t chunks, int64_t cols, bool accumulate) {
  for (int64_t col = grid_thread(); col < cols; col += grid_stride()) {
    A sum = accumulate ? out[col] : A(0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * cols + col];
    out[col] = sum;
  }
}

/// out[col] (+)= sum over rows of element(row, col).
template <class A, class E>
void column_sums(Stream& s, A* out, E element, int64_t rows, int64_t cols, bool accumulate) {
  // Fewer chunks where the scratch would not hold them.
  const int64_t fit = std::max<int64_t>(1, kScratchBytes / static_cast<int64_t>(cols * sizeof(A)));
  const int64_t chunks = std::min(row_chunks(rows), fit);
  A* partial = static_cast<A*>(scratch(s, chunks * cols * static_cast<int64_t>(sizeof(A))));
  dim3 grid = blocks_for(cols, kColumnThreads);
  grid.y = static_cast<unsigned>(chunks);
  launch(s, grid, kColumnThreads, 0, partial_column_sums<A, E>, partial, element, rows, cols);
  launch(s, blocks_for(cols, kColumnThreads), kColumnThreads, 0, add_chunks<A>, out,
         static_cast<const A*>(partial), chunks, cols, accumulate);
}

}  // namespace ltrain::cuda
