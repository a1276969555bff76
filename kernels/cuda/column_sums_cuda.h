// Column sums of a matrix, in an order that depends on the shape alone: gradients of biases and of norm
// weights. Rows are divided into chunks, which are summed before their sums are.
#pragma once
#include "kernels/cuda/pack_cuda.h"

namespace ltrain::cuda {

constexpr int kRowGroups = 8;                           // warps of a block of partial_column_sums
constexpr int kRowsAhead = 8;                           // rows that a warp loads before it adds them
constexpr int64_t kRowBatch = kRowGroups * kRowsAhead;  // rows that a block loads at a time
constexpr int64_t kColumnBlocks = 512;  // most blocks of one sum, on any card, beyond one a strip
constexpr int kChunkGroups = 16;        // groups of threads of add_chunks

/// An element function that stores what it computes, and says which loads of several rows go ahead:
/// element(v, element.load(row, col), row, col).
template <class E>
concept LoadsAhead = requires {
  typename E::Loaded;
};

/// partial[chunk, col] = sum over the chunk's rows of element(v, row, col), which gives N columns from col
/// on. A block has a strip of kWarp * N columns. Its warps take the chunk's rows alternately, and their sums
/// are added in order.
template <int N, class A, class E>
__global__ void __launch_bounds__(kRowGroups* kWarp, 4)
    partial_column_sums(A* partial, E element, int64_t rows, int64_t chunk_rows, int64_t cols) {
  constexpr int kStrip = kWarp * N;
  const int64_t chunk = blockIdx.y, first = int64_t{blockIdx.x} * kStrip;
  const int64_t begin = chunk * chunk_rows, end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const int64_t col = first + lane * N;
  A sum[N] = {};
  if (col < cols) {
    A v[N];
    if constexpr (LoadsAhead<E>) {
      constexpr int kAhead = E::kRows;
      for (int64_t first_row = begin + group; first_row < end; first_row += kAhead * kRowGroups) {
        typename E::Loaded loaded[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k)
          if (const int64_t row = first_row + k * kRowGroups; row < end) loaded[k] = element.load(row, col);
#pragma unroll
        for (int k = 0; k < kAhead; ++k)
          if (const int64_t row = first_row + k * kRowGroups; row < end) {
            element(v, loaded[k], row, col);
            for (int j = 0; j < N; ++j) sum[j] += v[j];
          }
      }
    } else {
#pragma unroll kRowsAhead
      for (int64_t row = begin + group; row < end; row += kRowGroups) {
        element(v, row, col);
        for (int j = 0; j < N; ++j) sum[j] += v[j];
      }
    }
  }
  A* of_group = shared_memory<A>();
  for (int j = 0; j < N; ++j) of_group[group * kStrip + lane * N + j] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < kStrip && first + i < cols; i += blockDim.x) {
    A total = of_group[i];
    for (int g = 1; g < kRowGroups; ++g) total += of_group[g * kStrip + i];
    store_one(partial, chunk * cols + first + i, total);
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
  A sum = 0, before = 0;
  if (col < cols) {
    if (accumulate && group == 0) before = load_one(out, col);
#pragma unroll 8
    for (int64_t chunk = group; chunk < chunks; chunk += kChunkGroups)
      sum += load_one(partial, chunk * cols + col);
  }
  of_group[threadIdx.x] = sum;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  for (int g = 0; g < kChunkGroups; ++g) before += of_group[g * kWarp + lane];
  store_one(out, col, before);
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
  const int64_t bytes = cols * static_cast<int64_t>(sizeof(A)), strips = (cols + kWarp * N - 1) / (kWarp * N);
  const int64_t batches = std::max<int64_t>(1, (rows + kRowBatch - 1) / kRowBatch);
  const int64_t most = std::max<int64_t>(1, std::min(kColumnBlocks / strips, kScratchBytes / bytes));
  const int64_t of_chunk = (batches + most - 1) / most, chunks = (batches + of_chunk - 1) / of_chunk;
  A* partial = static_cast<A*>(scratch(s, chunks * bytes));
  launch(s, dim3(static_cast<unsigned>(strips), static_cast<unsigned>(chunks)), kRowGroups * kWarp,
         kRowGroups * kWarp * N * static_cast<int64_t>(sizeof(A)), partial_column_sums<N, A, E>, partial,
         element, rows, of_chunk * kRowBatch, cols);
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
