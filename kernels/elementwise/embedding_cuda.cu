#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/embedding.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int N>
__global__ void lookup(T* y, const int32_t* tokens, const T* table, const T* positions, int64_t packs,
                       int64_t row_packs, RowMapArgs map, VocabPart part) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, col = i % row_packs * N, cols = row_packs * N;
    const int64_t id = tokens[row] - part.first;
    Pack<T, N> out;
    if (id >= 0 && id < part.rows) {
      out = load<T, N>(table, id * cols + col);
    } else {
      for (int j = 0; j < N; ++j) put(out.v, j, compute_t<T>(0));
    }
    if (positions) {
      const auto p = load<T, N>(positions, map.embedded(row) * cols + col);
      for (int j = 0; j < N; ++j) put(out.v, j, get(out.v, j) + get(p.v, j));
    }
    store(y, i * N, out);
  }
}

template <class T, int N>
__global__ void add_positions(T* y, const T* positions, int64_t packs, int64_t row_packs, RowMapArgs map) {
  for (int64_t i = grid_thread(); i < packs; i += grid_stride()) {
    const int64_t row = i / row_packs, col = i % row_packs * N;
    auto out = load<T, N>(y, i * N);
    const auto p = load<T, N>(positions, map.embedded(row) * row_packs * N + col);
    for (int j = 0; j < N; ++j) put(out.v, j, get(out.v, j) + get(p.v, j));
    store(y, i * N, out);
  }
}

/// A block a row of the table: it looks through all tokens, a window of kThreads at a time, and adds the
/// gradients of those that are its own in their order. No atomics, so that sums do not depend on who is
/// first.
template <class T, class Key>
__global__ void gather_rows(compute_t<T>* table, const T* dy, Key key, int64_t rows, int64_t cols,
                            int64_t own_rows, bool accumulate) {
  using A = compute_t<T>;
  int* hit = shared_memory<int>();  // of the window: whether each row is this block's
  const int64_t mine = blockIdx.x;
  if (!accumulate)
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) table[mine * cols + c] = A(0);
  if (mine >= own_rows) return;  // padding
  for (int64_t first = 0; first < rows; first += blockDim.x) {
    const int64_t row = first + threadIdx.x;
    hit[threadIdx.x] = row < rows && key(row) == mine;
    __syncthreads();
    for (int i = 0; i < static_cast<int>(blockDim.x); ++i)
      if (hit[i])
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
          table[mine * cols + c] += get(dy, (first + i) * cols + c);
    __syncthreads();
  }
}

struct TokenRow {
  const int32_t* tokens;
  int64_t first;
  __device__ int64_t operator()(int64_t row) const { return tokens[row] - first; }
};
struct PositionRow {
  RowMapArgs map;
  __device__ int64_t operator()(int64_t row) const { return map.embedded(row); }
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void embedding_forward_cuda(Stream& s, DType t, void* y, const int32_t* tokens, const void* table,
                            const void* positions, int64_t rows, int64_t cols, RowMapArgs map,
                            VocabPart part) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, table, positions}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::lookup<T, N>, static_cast<T*>(y),
             tokens, static_cast<const T*>(table), static_cast<const T*>(positions), rows * cols / N,
             cols / N, map, part);
    });
  });
}

void position_forward_cuda(Stream& s, DType t, void* y, const void* positions, int64_t rows, int64_t cols,
                           RowMapArgs map) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, positions}, [&]<int N>() {
      launch(s, blocks_for(rows * cols / N, kThreads), kThreads, 0, cuda::add_positions<T, N>,
             static_cast<T*>(y), static_cast<const T*>(positions), rows * cols / N, cols / N, map);
    });
  });
}

void embedding_backward_cuda(Stream& s, DType t, void* dtable, const void* dy, const int32_t* tokens,
                             int64_t rows, int64_t cols, int64_t table_rows, VocabPart part,
                             bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    launch(s, dim3(static_cast<unsigned>(table_rows)), kThreads, kThreads * 4, cuda::gather_rows<T, TokenRow>,
           static_cast<compute_t<T>*>(dtable), static_cast<const T*>(dy), TokenRow{tokens, part.first}, rows,
           cols, part.rows, accumulate);
  });
}

void position_backward_cuda(Stream& s, DType t, void* dpositions, const void* dy, int64_t rows, int64_t cols,
                            RowMapArgs map, int64_t positions, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    launch(s, dim3(static_cast<unsigned>(positions)), kThreads, kThreads * 4,
           cuda::gather_rows<T, PositionRow>, static_cast<compute_t<T>*>(dpositions),
           static_cast<const T*>(dy), PositionRow{map}, rows, cols, positions, accumulate);
  });
}

}  // namespace ltrain
