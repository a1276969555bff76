#include "kernels/matmul/code_tile_cuda.h"
#include "kernels/matmul/quantize.h"
#include "kernels/matmul/round_fp8_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kPack = 16;                // codes in 16 bytes
constexpr int kEdge = 32;                // side of a tile that a block transposes at once, element by element
constexpr int kTransposedThreads = 128;  // block size of kernels that transpose bytes

template <class T, int P>
__global__ void largest_magnitude(float* amax, const T* x, int64_t n) {
  uint32_t most = 0;
  over_packs<P>(n, [&]<int N>(int64_t i) {
    float v[N];
    load_floats<N>(v, x, i);
    for (int j = 0; j < N; ++j) most = Max()(most, magnitude(v[j]));
  });
  keep_largest(amax, most, shared_memory<uint32_t>());
}

/// With kMax also the largest magnitude, with one read of x.
template <class E, class T, int P, bool kMax>
__global__ void quantize(uint8_t* codes, const T* x, int64_t n, const float* step, float* amax) {
  const float inverse = 1.0f / *step;
  uint32_t most = 0;
  over_packs<P>(n, [&]<int N>(int64_t i) {
    float v[N];
    load_floats<N>(v, x, i);
    Pack<uint8_t, N> c;
    round_to<E, N>(c.v, v, inverse, most);
    store(codes, i, c);
  });
  if (kMax) keep_largest(amax, most, shared_memory<uint32_t>());
}

/// A block transposes tiles through shared memory.
template <class E, class T, bool kMax>
__global__ void quantize_transposed(uint8_t* codes, const T* x, int64_t rows, int64_t cols, const float* step,
                                    float* amax) {
  uint8_t* tile = shared_memory<uint8_t>() + kWarp * 4;  // (kEdge, kEdge + 1), behind the buffer of sums
  const float inverse = 1.0f / *step;
  const int64_t across = (cols + kEdge - 1) / kEdge, tiles = (rows + kEdge - 1) / kEdge * across;
  uint32_t most = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t r0 = t / across * kEdge, c0 = t % across * kEdge;
    for (int i = threadIdx.x; i < kEdge * kEdge; i += blockDim.x) {
      const int64_t r = r0 + i / kEdge, c = c0 + i % kEdge;
      if (r >= rows || c >= cols) continue;
      float v[1];
      load_floats<1>(v, x, r * cols + c);
      round_to<E, 1>(tile + (i / kEdge) * (kEdge + 1) + i % kEdge, v, inverse, most);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kEdge * kEdge; i += blockDim.x) {
      const int64_t c = c0 + i / kEdge, r = r0 + i % kEdge;
      if (r < rows && c < cols) store_one(codes, c * rows + r, tile[(i % kEdge) * (kEdge + 1) + i / kEdge]);
    }
    __syncthreads();
  }
  if (kMax) keep_largest(amax, most, shared_memory<uint32_t>());
}

constexpr int kBothThreads = 512;  // each quantizes 8 columns of 4 rows
constexpr int64_t kBothShared = kWarp * 4 + CodeTile::kBytes;

/// Codes of the transpose of x, and with kPlain of x too, with one read of x. rows is a multiple of 16, cols
/// of 8. A block handles tiles.
template <class E, class T, bool kPlain, bool kMax>
__global__ void __launch_bounds__(kBothThreads)
    quantize_tiles_of_packs(uint8_t* codes, uint8_t* transposed, const T* x, int64_t rows, int64_t cols,
                            const float* step, float* amax) {
  constexpr int kSide = CodeTile::kSide, kPacks = kSide / 8;
  const CodeTile tile{shared_memory<uint32_t>() + kWarp};  // behind the buffer of the maximum
  const float inverse = 1.0f / *step;
  const int64_t across = (cols + kSide - 1) / kSide, tiles = (rows + kSide - 1) / kSide * across;
  const int quad = threadIdx.x / kPacks, pack = threadIdx.x % kPacks;
  uint32_t most = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t r0 = t / across * kSide, c0 = t % across * kSide;
    const int64_t row = r0 + 4 * quad, col = c0 + 8 * pack;
    if (row < rows && col < cols) {
      uint32_t c[4][2];
      // All loads start before the first value is rounded, which may branch.
      if constexpr (is_half_v<T>) {
        Pack<T, 8> v[4];
        for (int k = 0; k < 4; ++k) v[k] = load<T, 8>(x, (row + k) * cols + col);
        round_packs<E, 4>(c, v, inverse, most);
      } else {
        float v[4][8];
        for (int k = 0; k < 4; ++k) load_floats<8>(v[k], x, (row + k) * cols + col);
        round_rows<E, 4, 8>(c, v, inverse, most);
      }
      if constexpr (kPlain) store_rows(codes, row, col, cols, c);
      tile.put(8 * pack, quad, c);
    }
    __syncthreads();
    tile.store_transposed<kBothThreads>(transposed, rows, r0,
                                        [&](int c) { return c0 + c < cols ? c0 + c : -1; });
    __syncthreads();
  }
  if (kMax) keep_largest(amax, most, shared_memory<uint32_t>());
}

/// Transposes bytes if rows and cols are multiples of 16: a thread loads 16 columns of 4 rows, and stores 16
/// rows of a column.
__global__ void __launch_bounds__(kTransposedThreads)
    turn_packs(uint8_t* transposed, const uint8_t* x, int64_t rows, int64_t cols) {
  constexpr int kRows = 64, kCols = 128, kQuads = kRows / 4, kWidth = kQuads + 1;
  uint32_t* tile = shared_memory<uint32_t>();  // (kCols, kWidth): four rows in a word
  const int64_t across = (cols + kCols - 1) / kCols, tiles = (rows + kRows - 1) / kRows * across;
  const int quad = threadIdx.x / 8, pack = threadIdx.x % 8;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t r0 = t / across * kRows, c0 = t % across * kCols;
    const int64_t row = r0 + 4 * quad, col = c0 + kPack * pack;
    if (row < rows && col < cols) {
      Pack<uint8_t, kPack> c[4];
      for (int k = 0; k < 4; ++k) c[k] = load<uint8_t, kPack>(x, (row + k) * cols + col);
      for (int j = 0; j < kPack; ++j)
        tile[(kPack * pack + j) * kWidth + quad] =
            static_cast<uint32_t>(c[0].v[j]) | static_cast<uint32_t>(c[1].v[j]) << 8 |
            static_cast<uint32_t>(c[2].v[j]) << 16 | static_cast<uint32_t>(c[3].v[j]) << 24;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * kCols / kPack; i += kTransposedThreads) {
      const int64_t c = i / (kRows / kPack), r = i % (kRows / kPack) * kPack;
      if (c0 + c >= cols || r0 + r >= rows) continue;
      Pack<uint32_t, 4> words;
      for (int k = 0; k < 4; ++k) words.v[k] = tile[c * kWidth + r / 4 + k];
      store(reinterpret_cast<uint32_t*>(transposed + (c0 + c) * rows + r0 + r), 0, words);
    }
    __syncthreads();
  }
}

__global__ void turn_bytes(uint8_t* transposed, const uint8_t* x, int64_t rows, int64_t cols) {
  for (int64_t i = grid_thread(); i < rows * cols; i += grid_stride())
    store_one(transposed, i, load_one(x, i % rows * cols + i / rows));
}

constexpr int kSide = static_cast<int>(kFp8Block);  // side of a tile with one step, or with one for each line
constexpr int kLaneCols = kSide / kWarp, kWarpRows = 16;  // columns and rows of a thread
constexpr int kBlockThreads = kSide / kWarpRows * kWarp;  // a warp has kWarpRows rows
constexpr int kTransposedLine = kSide + 16;               // bytes of a transposed line in shared memory

/// A block quantizes a tile of kSide by kSide elements with one read. The tile has one step (kOne), or each
/// line of the codes has one: a row of the tile, or with kTurn a column.
template <class E, class T, bool kTurn, bool kOne, bool kPacks>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_tiles(uint8_t* codes, float* steps, const T* x, int64_t rows, int64_t cols, int top) {
  const int64_t across = (cols + kSide - 1) / kSide, down = (rows + kSide - 1) / kSide;
  const int64_t tile_row = blockIdx.x / across, tile_col = blockIdx.x % across;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t row0 = tile_row * kSide + warp * kWarpRows, col0 = tile_col * kSide + lane * kLaneCols;
  float v[kWarpRows][kLaneCols];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    for (int c = 0; c < kLaneCols; ++c) v[r][c] = 0;
    if (row0 + r >= rows) continue;
    const int64_t at = (row0 + r) * cols + col0;
    if constexpr (kPacks) {
      if (col0 < cols) load_floats<kLaneCols>(v[r], x, at);
    } else {
      for (int c = 0; c < kLaneCols; ++c)
        if (col0 + c < cols) load_floats<1>(&v[r][c], x, at + c);
    }
  }
  const int64_t step_cols = kTurn ? down : across;
  const int64_t step_row = kTurn ? tile_col : tile_row, step_col = kTurn ? tile_row : tile_col;
  uint32_t* const scratch = shared_memory<uint32_t>();
  float inverse_of[kTurn ? kLaneCols : kWarpRows];  // one for each line of this thread
  if constexpr (kOne) {
    uint32_t most = 0;
    for (const auto& line : v)
      for (float e : line) most = Max()(most, magnitude(e));
    most = block_reduce(most, Max(), 0u, scratch);
    const float step = fp8::step_of(fp8::float_of(most), top, 0);
    if (threadIdx.x == 0) store_one(steps, step_row * step_cols + step_col, step);
    for (float& i : inverse_of) i = 1.0f / step;
  } else if constexpr (!kTurn) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      uint32_t most = 0;
      for (int c = 0; c < kLaneCols; ++c) most = Max()(most, magnitude(v[r][c]));
      most = warp_reduce(most, Max());
      const float step = fp8::step_of(fp8::float_of(most), top, 0);
      if (lane == 0 && row0 + r < rows) store_one(steps, (row0 + r) * step_cols + step_col, step);
      inverse_of[r] = 1.0f / step;
    }
  } else {
    for (int c = 0; c < kLaneCols; ++c) {
      uint32_t most = 0;
      for (int r = 0; r < kWarpRows; ++r) most = Max()(most, magnitude(v[r][c]));
      scratch[warp * kSide + lane * kLaneCols + c] = most;
    }
    __syncthreads();
    for (int c = 0; c < kLaneCols; ++c) {
      uint32_t most = 0;
      for (int w = 0; w < kBlockThreads / kWarp; ++w)
        most = Max()(most, scratch[w * kSide + lane * kLaneCols + c]);
      const float step = fp8::step_of(fp8::float_of(most), top, 0);
      if (warp == 0 && col0 + c < cols) store_one(steps, (col0 + c) * step_cols + step_col, step);
      inverse_of[c] = 1.0f / step;
    }
    __syncthreads();  // the codes reuse the memory of the magnitudes
  }
  uint32_t any = 0;
  if constexpr (!kTurn) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if (row0 + r >= rows) continue;
      Pack<uint8_t, kLaneCols> c;
      round_to<E, kLaneCols>(c.v, v[r], inverse_of[r], any);
      const int64_t at = (row0 + r) * cols + col0;
      if constexpr (kPacks) {
        if (col0 < cols) store(codes, at, c);
      } else {
        for (int j = 0; j < kLaneCols; ++j)
          if (col0 + j < cols) store_one(codes, at + j, c.v[j]);
      }
    }
  } else {
    uint8_t* const lines = reinterpret_cast<uint8_t*>(scratch);  // (kSide columns, kTransposedLine)
#pragma unroll
    for (int c = 0; c < kLaneCols; ++c) {
      float column[kWarpRows];
      for (int r = 0; r < kWarpRows; ++r) column[r] = v[r][c];
      Pack<uint8_t, kWarpRows> to;
      round_to<E, kWarpRows>(to.v, column, inverse_of[c], any);
      *reinterpret_cast<Pack<uint8_t, kWarpRows>*>(lines + (lane * kLaneCols + c) * kTransposedLine +
                                                   warp * kWarpRows) = to;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kSide * kSide / kPack; i += kBlockThreads) {
      const int line = i / (kSide / kPack), part = i % (kSide / kPack) * kPack;
      const int64_t col = tile_col * kSide + line, row = tile_row * kSide + part;
      if (col >= cols) continue;
      const auto c = *reinterpret_cast<const Pack<uint8_t, kPack>*>(lines + line * kTransposedLine + part);
      if constexpr (kPacks) {
        if (row < rows) store(codes, col * rows + row, c);
      } else {
        for (int j = 0; j < kPack; ++j)
          if (row + j < rows) store_one(codes, col * rows + row + j, c.v[j]);
      }
    }
  }
}

/// One block for each element.
__global__ void update_steps(float* steps, float* amax, float* history, int64_t n, int64_t length,
                             Fp8StepArgs args) {
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    float* own = history + i * length;
    const float newest = length > 0 && !args.record ? own[0] : amax[i];
    float most = -INFINITY;  // maximum over finite values; others say nothing about later numbers
    for (int64_t end = length; end > 0; end -= kThreads) {  // oldest entries first
      const int64_t k = end - 1 - threadIdx.x;
      float v = newest;
      if (k >= 0) v = !args.record ? own[k] : k > 0 ? own[k - 1] : newest;
      __syncthreads();  // all threads have read before one writes
      if (k >= 0 && args.record) own[k] = v;
      if (k >= 0 && fp8::finite(v)) most = Max()(most, v);
    }
    most = block_reduce(most, Max(), -INFINITY, shared_memory<float>());
    if (threadIdx.x == 0) {
      if (length > 0 && args.record) amax[i] = 0;
      const bool all = length > 0 && !args.most_recent && fp8::finite(most);
      steps[i * kFp8StepStride] = fp8::step_of(all ? most : newest, args.top[i % args.period], args.margin);
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void turn_codes_cuda(Stream& s, void* transposed, const void* codes, int64_t rows, int64_t cols) {
  if (rows * cols == 0) return;
  uint8_t* out = static_cast<uint8_t*>(transposed);
  const uint8_t* in = static_cast<const uint8_t*>(codes);
  if (aligned({out, in}) && rows % kPack == 0 && cols % kPack == 0)
    launch(s, blocks_for((rows + 63) / 64 * ((cols + 127) / 128), 1), kTransposedThreads, 128 * 17 * 4,
           cuda::turn_packs, out, in, rows, cols);
  else
    launch(s, blocks_for(rows * cols, kThreads), kThreads, 0, cuda::turn_bytes, out, in, rows, cols);
}

void max_abs_cuda(Stream& s, DType t, float* amax, const void* x, int64_t n) {
  if (n == 0) return;
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({x}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads, kMaxBlocks), kThreads, kWarp * 4, cuda::largest_magnitude<T, N>,
             amax, static_cast<const T*>(x), n);
    });
  });
}

void quantize_cuda(Stream& s, DType to, DType from, void* codes, const void* x, int64_t rows, int64_t cols,
                   bool turn, const float* step, float* amax) {
  if (rows * cols == 0) return;
  const bool packs = aligned({codes, x});
  if (turn && packs && rows % kPack == 0 && cols % 8 == 0)
    return quantize_both_cuda(s, to, from, nullptr, codes, x, rows, cols, step, amax);
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      uint8_t* out = static_cast<uint8_t*>(codes);
      const T* in = static_cast<const T*>(x);
      const auto with_max = [&]<bool kMax>() {
        if (!turn)
          return launch(s, blocks_for(rows * cols / (packs ? kPack : 1), kThreads, kMaxBlocks), kThreads,
                        kWarp * 4, packs ? cuda::quantize<E, T, kPack, kMax> : cuda::quantize<E, T, 1, kMax>,
                        out, in, rows * cols, step, amax);
        launch(s, blocks_for((rows + kEdge - 1) / kEdge * ((cols + kEdge - 1) / kEdge), 1, kMaxBlocks),
               kThreads, kWarp * 4 + kEdge * (kEdge + 1), cuda::quantize_transposed<E, T, kMax>, out, in,
               rows, cols, step, amax);
      };
      amax ? with_max.template operator()<true>() : with_max.template operator()<false>();
    });
  });
}

void quantize_both_cuda(Stream& s, DType to, DType from, void* codes, void* transposed, const void* x,
                        int64_t rows, int64_t cols, const float* step, float* amax) {
  if (rows * cols == 0) return;
  if (!aligned({codes, transposed, x}) || rows % kPack != 0 || cols % 8 != 0) {
    quantize_cuda(s, to, from, codes, x, rows, cols, false, step, amax);
    return quantize_cuda(s, to, from, transposed, x, rows, cols, true, step, nullptr);
  }
  const dim3 blocks = blocks_for(
      (rows + CodeTile::kSide - 1) / CodeTile::kSide * ((cols + CodeTile::kSide - 1) / CodeTile::kSide), 1,
      kMaxBlocks);
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      const auto run = [&]<bool kPlain, bool kMax>() {
        launch(s, blocks, kBothThreads, kBothShared, cuda::quantize_tiles_of_packs<E, T, kPlain, kMax>,
               static_cast<uint8_t*>(codes), static_cast<uint8_t*>(transposed), static_cast<const T*>(x),
               rows, cols, step, amax);
      };
      if (codes)
        amax ? run.template operator()<true, true>() : run.template operator()<true, false>();
      else
        amax ? run.template operator()<false, true>() : run.template operator()<false, false>();
    });
  });
}

void quantize_blocks_cuda(Stream& s, DType to, DType from, void* codes, float* steps, const void* x,
                          int64_t rows, int64_t cols, bool turn, int64_t block_rows) {
  if (rows * cols == 0) return;
  const int64_t tiles = (rows + kSide - 1) / kSide * ((cols + kSide - 1) / kSide);
  LT_CHECK(tiles < int64_t{1} << 31, "quantize_blocks: expected fewer than 2^31 blocks of a matrix, got {}",
           tiles);
  const bool packs = aligned({codes, x}) && cols % kLaneCols == 0 && (!turn || rows % kPack == 0);
  constexpr int64_t kShared = std::max<int64_t>(kSide * kTransposedLine, kBlockThreads / kWarp * kSide * 4);
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      const auto run = [&]<bool kTurn, bool kOne>() {
        launch(s, dim3(static_cast<unsigned>(tiles)), kBlockThreads, kTurn ? kShared : kWarp * 4,
               packs ? cuda::quantize_tiles<E, T, kTurn, kOne, true>
                     : cuda::quantize_tiles<E, T, kTurn, kOne, false>,
               static_cast<uint8_t*>(codes), steps, static_cast<const T*>(x), rows, cols,
               fp8_top_exponent(to));
      };
      const bool one = block_rows > 1;
      if (turn)
        one ? run.template operator()<true, true>() : run.template operator()<true, false>();
      else
        one ? run.template operator()<false, true>() : run.template operator()<false, false>();
    });
  });
}

void update_fp8_steps_cuda(Stream& s, float* steps, float* amax, float* history, int64_t n, int64_t length,
                           Fp8StepArgs args) {
  launch(s, dim3(static_cast<unsigned>(std::min<int64_t>(n, 1 << 16))), kThreads, kWarp * 4,
         cuda::update_steps, steps, amax, history, n, length, args);
}

}  // namespace ltrain
