#include "kernels/cuda/matrix_cuda.h"
#include "kernels/elementwise/swiglu_cuda.h"
#include "kernels/matmul/code_tile_cuda.h"
#include "kernels/matmul/round_fp8_cuda.h"
#include "kernels/matmul/swiglu_fp8.h"

namespace ltrain {
namespace cuda {
namespace {

/// A block handles a run of packs of rows (RowGrid); rows of gate_up are twice as long as rows of the codes.
/// With `amax` it keeps the largest magnitude of its results.
template <class T, int N>
__global__ void swiglu_forward_fp8(uint8_t* codes, const T* gate_up, int64_t rows, int64_t row_packs,
                                   const float* step, float* amax) {
  using A = compute_t<T>;
  const int64_t cols = row_packs * N, col = row_pack() * N;
  const float inverse = 1.0f / *step;
  uint32_t most = 0;
  if (col < cols)
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      A g[N], u[N];
      load_values<N>(g, gate_up, 2 * row * cols + col);
      load_values<N>(u, gate_up, (2 * row + 1) * cols + col);
      for (int j = 0; j < N; ++j) g[j] = Swiglu<T>(g[j], u[j]).value();
      store_rounded<T, N>(codes, row * cols + col, g, inverse, most);
    }
  if (amax) keep_largest(amax, most, shared_memory<uint32_t>());
}

/// Any shape and type, element by element.
template <class E, class T>
__global__ void swiglu_backward_fp8_elements(uint8_t* codes, uint8_t* transposed, const T* dy,
                                             const T* gate_up, int64_t rows, int64_t cols, const float* step,
                                             float* amax) {
  const float inverse = 1.0f / *step;
  uint32_t most = 0;
  for (int64_t i = grid_thread(); i < rows * cols; i += grid_stride()) {
    const int64_t row = i / cols, col = i % cols, gate = 2 * row * cols + col;
    compute_t<T> g[1], u[1], d[1];
    load_values<1>(g, gate_up, gate);
    load_values<1>(u, gate_up, gate + cols);
    load_values<1>(d, dy, i);
    const Swiglu<T> at(g[0], u[0]);
    const compute_t<T> gradient[2] = {at.to_gate(d[0]), at.to_up(d[0])};
    const Pack<T, 2> kept = rounded<T, 2>(gradient);
    float v[2];
    for (int j = 0; j < 2; ++j) v[j] = static_cast<float>(get(kept.v, j));
    uint8_t c[2];
    round_to<E, 2>(c, v, inverse, most);
    for (int j = 0; j < 2; ++j) {
      store_one(codes, gate + j * cols, c[j]);
      store_one(transposed, (col + j * cols) * rows + row, c[j]);
    }
  }
  if (amax) keep_largest(amax, most, shared_memory<uint32_t>());
}

constexpr int kTileCols = CodeTile::kSide / 2;  // columns of dy in a tile of the backward
// A thread handles 8 columns of 4 rows.
constexpr int kForwardThreads = CodeTile::kSide * CodeTile::kSide / 32;
constexpr int kBackwardThreads = kTileCols * CodeTile::kSide / 32;

/// 8 columns of 4 rows of each operand, which a thread copies ahead into shared memory and reads itself.
template <class T, int kThreads, int kOperands>
struct CopiedRows {
  static constexpr int64_t kBytes = int64_t{4} * kOperands * kThreads * 16;
  Pack<T, 8>* own;
  explicit __device__ CopiedRows(void* shared) : own(static_cast<Pack<T, 8>*>(shared) + threadIdx.x) {}
  __device__ __forceinline__ Pack<T, 8>* at(int row, int operand) const {
    return own + (row * kOperands + operand) * kThreads;
  }
};

// The kernels below need rows that are a multiple of 16, columns of 8, and a T of 16 bits. A block handles
// the tiles of columns blockIdx.x. A thread copies a row of its next tile as soon as it has computed the same
// row of this one, so that copies are always in flight.

template <class T>
__global__ void __launch_bounds__(kForwardThreads, 2)
    swiglu_forward_fp8_tiles(uint8_t* codes, uint8_t* transposed, const T* gate_up, int64_t rows,
                             int64_t cols, const float* step, float* amax) {
  constexpr int kSide = CodeTile::kSide, kPacks = kSide / 8;
  const CodeTile tile{shared_memory<uint32_t>() + kWarp};  // behind the buffer of the maximum
  const CopiedRows<T, kForwardThreads, 2> copied(tile.end());
  const float inverse = 1.0f / *step;
  const int tile_col = threadIdx.x % kPacks * 8, quad = threadIdx.x / kPacks;
  const int64_t c0 = int64_t{blockIdx.x} * kSide, col = c0 + tile_col;
  const int64_t first = int64_t{blockIdx.y} * kSide, down = int64_t{gridDim.y} * kSide;
  const auto fetch = [&](int64_t row, int k) {  // zeros beyond the matrix
    const bool inside = row < rows && col < cols;
    const T* const gate = gate_up + (inside ? 2 * row * cols + col : 0) + 2 * k * cols;
    copy_async_16(copied.at(k, 0), gate, inside);
    copy_async_16(copied.at(k, 1), gate + cols, inside);
    commit_copies();
  };
  uint32_t most = 0;
  for (int k = 0; k < 4; ++k) fetch(first + 4 * quad, k);
  for (int64_t r0 = first; r0 < rows; r0 += down) {
    const int64_t row = r0 + 4 * quad;
    if (row < rows && col < cols) {
      Pack<T, 8> y[4];
      uint32_t c[4][2];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float g[8], u[8];
        wait_for_older_copies<3>();
        unpack(g, *copied.at(k, 0)), unpack(u, *copied.at(k, 1));
        for (int j = 0; j < 8; ++j) g[j] = Swiglu<T>(g[j], u[j]).value();
        y[k] = rounded<T, 8>(g);
        fetch(row + down, k);
      }
      round_packs<E4m3, 4>(c, y, inverse, most);
      store_rows(codes, row, col, cols, c);
      tile.put(tile_col, quad, c);
    }
    __syncthreads();
    tile.store_transposed<kForwardThreads>(transposed, rows, r0,
                                           [&](int c) { return c0 + c < cols ? c0 + c : -1; });
    __syncthreads();
  }
  wait_for_copies();
  if (amax) keep_largest(amax, most, shared_memory<uint32_t>());
}

/// The gradients of gate and of up of kTileCols columns fill a tile.
template <class E, class T>
__global__ void __launch_bounds__(kBackwardThreads)
    swiglu_backward_fp8_tiles(uint8_t* codes, uint8_t* transposed, const T* dy, const T* gate_up,
                              int64_t rows, int64_t cols, const float* step, float* amax) {
  constexpr int kSide = CodeTile::kSide, kPacks = kTileCols / 8;
  const CodeTile tile{shared_memory<uint32_t>() + kWarp};  // behind the buffer of the maximum
  const CopiedRows<T, kBackwardThreads, 3> copied(tile.end());
  const float inverse = 1.0f / *step;
  const int tile_col = threadIdx.x % kPacks * 8, quad = threadIdx.x / kPacks;
  const int64_t c0 = int64_t{blockIdx.x} * kTileCols, col = c0 + tile_col;
  const int64_t first = int64_t{blockIdx.y} * kSide, down = int64_t{gridDim.y} * kSide;
  const auto fetch = [&](int64_t row, int k) {  // zeros beyond the matrix
    const bool inside = row < rows && col < cols;
    const T* const gate = gate_up + (inside ? 2 * row * cols + col : 0) + 2 * k * cols;
    copy_async_16(copied.at(k, 0), gate, inside);
    copy_async_16(copied.at(k, 1), gate + cols, inside);
    copy_async_16(copied.at(k, 2), dy + (inside ? row * cols + col : 0) + k * cols, inside);
    commit_copies();
  };
  uint32_t most = 0;
  for (int k = 0; k < 4; ++k) fetch(first + 4 * quad, k);
  for (int64_t r0 = first; r0 < rows; r0 += down) {
    const int64_t row = r0 + 4 * quad;
    if (row < rows && col < cols) {
      Pack<T, 8> y[8];  // gradients of gate, then of up
      uint32_t c[8][2];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float g[8], u[8], d[8];
        wait_for_older_copies<3>();
        unpack(g, *copied.at(k, 0)), unpack(u, *copied.at(k, 1)), unpack(d, *copied.at(k, 2));
        for (int j = 0; j < 8; ++j) {
          const Swiglu<T> at(g[j], u[j]);
          g[j] = at.to_gate(d[j]);
          u[j] = at.to_up(d[j]);
        }
        y[k] = rounded<T, 8>(g), y[4 + k] = rounded<T, 8>(u);
        fetch(row + down, k);
      }
      round_packs<E, 8>(c, y, inverse, most);
      store_rows(codes, row, col, 2 * cols, c);
      store_rows(codes, row, cols + col, 2 * cols, c + 4);
      tile.put(tile_col, quad, c);
      tile.put(kTileCols + tile_col, quad, c + 4);
    }
    __syncthreads();
    tile.store_transposed<kBackwardThreads>(transposed, rows, r0, [&](int c) {
      const int64_t of_dy = c0 + c % kTileCols;
      return of_dy < cols ? of_dy + c / kTileCols * cols : -1;
    });
    __syncthreads();
  }
  wait_for_copies();
  if (amax) keep_largest(amax, most, shared_memory<uint32_t>());
}

/// Grid for tiles of `width` columns.
dim3 tile_grid(int64_t rows, int64_t cols, int width) {
  const dim3 across = blocks_for(cols, width, int64_t{1} << 30);
  return dim3(across.x, blocks_for(rows, CodeTile::kSide, std::max<int64_t>(1, kMaxBlocks / across.x)).x);
}

constexpr int64_t kTileShared = kWarp * 4 + CodeTile::kBytes;  // without copied rows

/// True if a matrix may be handled in tiles.
bool in_tiles(std::initializer_list<const void*> pointers, int64_t rows, int64_t cols) {
  return aligned(pointers) && rows % CodeTile::kPack == 0 && cols % 8 == 0;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void swiglu_forward_fp8_cuda(Stream& s, DType t, void* codes, void* transposed, const float* step,
                             float* amax, const void* gate_up, int64_t rows, int64_t cols) {
  if (rows * cols == 0) return;
  dispatch_float(t, [&]<class T>() {
    const T* const in = static_cast<const T*>(gate_up);
    uint8_t *const out = static_cast<uint8_t*>(codes), *const also = static_cast<uint8_t*>(transposed);
    if constexpr (is_half_v<T>)
      if (transposed && in_tiles({codes, transposed, gate_up}, rows, cols))
        return launch(s, tile_grid(rows, cols, CodeTile::kSide), kForwardThreads,
                      kTileShared + CopiedRows<T, kForwardThreads, 2>::kBytes,
                      cuda::swiglu_forward_fp8_tiles<T>, out, also, in, rows, cols, step, amax);
    const auto run = [&]<int N>() {
      RowGrid g(rows, cols / N);
      g.grid.x = static_cast<unsigned>(std::min<int64_t>(rows, std::max<int64_t>(1, kMaxBlocks / g.grid.y)));
      launch(s, g.grid, g.threads, kWarp * 4, cuda::swiglu_forward_fp8<T, N>, out, in, rows, cols / N, step,
             amax);
    };
    constexpr int kCodes = 16;  // codes in 16 bytes
    if (cols % kCodes == 0 && aligned({codes, gate_up}))
      run.template operator()<kCodes>();
    else
      run.template operator()<1>();
    if (transposed) turn_codes_cuda(s, transposed, codes, rows, cols);
  });
}

void swiglu_backward_fp8_cuda(Stream& s, DType to, DType t, void* codes, void* transposed, const float* step,
                              float* amax, const void* dy, const void* gate_up, int64_t rows, int64_t cols) {
  if (rows * cols == 0) return;
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(t, [&]<class T>() {
      const auto run = [&](dim3 grid, int64_t shared, auto kernel) {
        launch(s, grid, kBackwardThreads, shared, kernel, static_cast<uint8_t*>(codes),
               static_cast<uint8_t*>(transposed), static_cast<const T*>(dy), static_cast<const T*>(gate_up),
               rows, cols, step, amax);
      };
      if constexpr (is_half_v<T>)
        if (in_tiles({codes, transposed, dy, gate_up}, rows, cols))
          return run(tile_grid(rows, cols, kTileCols),
                     kTileShared + CopiedRows<T, kBackwardThreads, 3>::kBytes,
                     cuda::swiglu_backward_fp8_tiles<E, T>);
      run(blocks_for(rows * cols, kBackwardThreads, kMaxBlocks), kWarp * 4,
          cuda::swiglu_backward_fp8_elements<E, T>);
    });
  });
}

}  // namespace ltrain
