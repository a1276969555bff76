// Column sums of a matrix, in an order that depends on the shape alone: gradients of biases and of norm
// weights. Rows are divided into chunks. Each chunk is summed in order, then the chunks are.
#pragma once
#include "kernels/cuda/pack_cuda.h"

namespace ltrain::cuda {

constexpr int kColumnThreads = 128;
constexpr int64_t kMostRowChunks = 512;
constexpr int kChunkGroups = 16;  // groups of threads of add_chunks

/// Number of chunks of rows, each with its own partial sums; fewer if the scratch cannot hold `bytes_a_chunk`
/// for each.
inline int64_t row_chunks(int64_t rows, int64_t bytes_a_chunk, int64_t most = kMostRowChunks) {
  const int64_t fit = std::max<int64_t>(1, kScratchBytes / bytes_a_chunk);
  return std::min(fit, std::clamp<int64_t>(rows / 16, 1, most));
}

/// partial[chunk, col] = sum over the chunk's rows of element(row, col), which returns N columns from col on.
template <int N, class A, class E>
__global__ void partial_column_sums(A* partial, E element, int64_t rows, int64_t cols) {
  const int64_t chunk = blockIdx.y, chunks = gridDim.y;
  const int64_t begin = rows * chunk / chunks, end = rows * (chunk + 1) / chunks;
  for (int64_t col = grid_thread() * N; col < cols; col += grid_stride() * N) {
    A sum[N] = {}, v[N];
#pragma unroll 4
    for (int64_t row = begin; row < end; ++row) {
      element(v, row, col);
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
    store_values<N>(partial, chunk * cols + col, sum);
  }
}

/// out[col] (+)= sum over chunks. A block has a warp of columns; groups of threads add every kChunkGroups-th
/// chunk, and the first group adds the groups. The second row of blocks does the same for `second`, with
/// chunks behind those of `first`.
template <class A>
__global__ void add_chunks(A* first, A* second, const A* partial, int64_t chunks, int64_t cols,
                           bool accumulate) {
  A* const out = blockIdx.y == 0 ? first : second;
  partial += blockIdx.y * chunks * cols;
  A* of_group = shared_memory<A>();
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const int64_t col = int64_t{blockIdx.x} * kWarp + lane;
  A sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int64_t chunk = group; chunk < chunks; chunk += kChunkGroups)
      sum += load_one(partial, chunk * cols + col);
  }
  of_group[threadIdx.x] = sum;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  sum = accumulate ? load_one(out, col) : A(0);
  for (int g = 0; g < kChunkGroups; ++g) sum += of_group[g * kWarp + lane];
  store_one(out, col, sum);
}

/// `second`: null for one output.
template <class A>
void sum_chunks(Stream& s, A* first, A* second, const A* partial, int64_t chunks, int64_t cols,
                bool accumulate) {
  launch(s, dim3(static_cast<unsigned>((cols + kWarp - 1) / kWarp), second ? 2 : 1), kChunkGroups * kWarp,
         kChunkGroups * kWarp * static_cast<int64_t>(sizeof(A)), add_chunks<A>, first, second, partial,
         chunks, cols, accumulate);
}

/// out[col] (+)= sum over rows of element(A* v, row, col), which writes N columns from col on to v; N divides
/// cols.
template <int N, class A, class E>
void column_sums(Stream& s, A* out, E element, int64_t rows, int64_t cols, bool accumulate) {
  const int64_t bytes = cols * static_cast<int64_t>(sizeof(A)), chunks = row_chunks(rows, bytes);
  A* partial = static_cast<A*>(scratch(s, chunks * bytes));
  dim3 grid = blocks_for(cols / N, kColumnThreads);
  grid.y = static_cast<unsigned>(chunks);
  launch(s, grid, kColumnThreads, 0, partial_column_sums<N, A, E>, partial, element, rows, cols);
  sum_chunks<A>(s, out, nullptr, static_cast<const A*>(partial), chunks, cols, accumulate);
}

/// Adapter for an element function with one column.
template <class E>
struct OneColumn {
  E of;
  template <class A>
  __device__ void operator()(A* v, int64_t row, int64_t col) const {
    v[0] = of(row, col);
  }
};

/// out[col] (+)= sum over rows of element(row, col).
template <class A, class E>
void column_sums(Stream& s, A* out, E element, int64_t rows, int64_t cols, bool accumulate) {
  column_sums<1>(s, out, OneColumn<E>{element}, rows, cols, accumulate);
}

}  // namespace ltrain::cuda
