// Grouped GEMM by mma.sync, on A100 and later. A block computes one tile of a group's output. Chunks of its
// operands arrive by asynchronous copies, several chunks ahead of the one that its warps multiply.
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/wgmma_cuda.h"
#include "kernels/matmul/grouped/grouped_gemm_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kMmaThreads = 4 * kWarp;  ///< four warps, 2 x 2
constexpr int kDepth = 32;              ///< contraction length of a chunk
constexpr int kParts = 4;               ///< chunks in shared memory

/// Tile sizes of a block. Two blocks share a multiprocessor.
template <int rows, int cols>
struct Cut {
  static constexpr int kRows = rows, kCols = cols;                  ///< tile of a block
  static constexpr int kWarpRows = rows / 2, kWarpCols = cols / 2;  ///< tile of a warp
  static constexpr int kPart = (rows + cols) * kDepth;              ///< elements of a chunk of both operands
  template <class O>
  static constexpr int64_t shared = std::max<int64_t>(2 * kParts * kPart, int64_t{sizeof(O)} * rows * cols);
};

/// Copies of an operand's chunks into shared memory: kWide rows of kDepth contracted columns, or kDepth
/// contracted rows of kWide columns.
template <class T, Along kAlong, int kWide>
struct Feed {
  static constexpr bool kRunning = kAlong == Along::columns;  ///< the contraction runs along a row
  static constexpr int kCols = kRunning ? kDepth : kWide, kRows = kRunning ? kWide : kDepth;
  static constexpr int kChunks = kCols / 8, kAtOnce = kMmaThreads / kChunks;
  static_assert(kMmaThreads % kChunks == 0 && kRows % kAtOnce == 0 && kAtOnce % 8 == 0);

  const T *base, *from;
  int64_t stride;
  int row, chunk, wide;

  /// base: first chunk; `wide`: number of valid rows, or columns.
  __device__ Feed(const T* base, int64_t stride, int wide)
      : base(base), stride(stride), row(threadIdx.x / kChunks), chunk(threadIdx.x % kChunks), wide(wide) {
    from = base + row * stride + chunk * 8;
  }
  /// Starts the copy of the next chunk, with `summed` valid elements along the contraction; the others become
  /// zero.
  __device__ __forceinline__ void next(T* to, int summed) {
    const bool column = chunk * 8 < (kRunning ? summed : wide);
#pragma unroll
    for (int r = 0; r < kRows; r += kAtOnce) {
      const bool there = column && row + r < (kRunning ? wide : summed);
      copy_async_16(to + place<kCols>(row + r, chunk), there ? from + r * stride : base, there);
    }
    from += kRunning ? int64_t{kDepth} : kDepth * stride;
  }
};

/// Left operand: 16 rows from `first` on, 16 contracted elements from `k` on.
template <Along kAlong, int kWide, class T>
__device__ __forceinline__ void load_left(uint32_t (&to)[4], const T* tile, int first, int k) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (kAlong == Along::columns) {
    load_matrices(to, tile + place<kDepth>(first + lane % 16, k / 8 + lane / 16));
  } else {
    load_transposed(to, tile + place<kWide>(k + lane % 8 + lane / 16 * 8, first / 8 + lane / 8 % 2));
  }
}
/// Right operand: two times 8 columns from `first` on.
template <Along kAlong, int kWide, class T>
__device__ __forceinline__ void load_right(uint32_t (&to)[4], const T* tile, int first, int k) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (kAlong == Along::columns) {
    load_matrices(to, tile + place<kDepth>(first + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2));
  } else {
    load_transposed(to, tile + place<kWide>(k + lane % 16, first / 8 + lane / 16));
  }
}

/// n, k: rows and columns of a group's matrix.
template <class C, GroupedProduct kKind, class T, class O>
__global__ void __launch_bounds__(kMmaThreads, 2)
    grouped_gemm_mma(O* out, const T* a, const T* b, int n, int k, bool accumulate,
                     const __grid_constant__ GroupTable table) {
  constexpr bool kGradient = kKind == GroupedProduct::weight_gradient;
  constexpr Along kLeft = kGradient ? Along::rows : Along::columns;
  constexpr Along kRight = kKind == GroupedProduct::forward ? Along::columns : Along::rows;
  const int tile = static_cast<int>(blockIdx.x);
  const GroupTile t(table, tile, kGradient ? n : 0, C::kRows, C::kCols);
  const int a_cols = kKind == GroupedProduct::forward ? k : n,
            cols = kKind == GroupedProduct::forward ? n : k;
  const int rows = (kGradient ? n : t.rows) - t.from_row, out_cols = cols - t.from_col;
  int summed = kGradient ? t.rows : a_cols;

  Feed<T, kLeft, C::kRows> left(
      a + (kGradient ? t.row * n + t.from_row : (t.row + t.from_row) * int64_t{a_cols}), a_cols, rows);
  Feed<T, kRight, C::kCols> right(
      b + (kGradient ? t.row * k + t.from_col
                     : t.matrix * n * k + (kRight == Along::columns ? int64_t{t.from_col} * k : t.from_col)),
      k, out_cols);
  T* const parts = shared_memory<T>();
  const int steps = (summed + kDepth - 1) / kDepth;
  const auto fetch = [&](int step) {
    if (step < steps) {
      T* const to = parts + step % kParts * C::kPart;
      left.next(to, summed);
      right.next(to + C::kRows * kDepth, summed);
      summed -= kDepth;
    }
    commit_copies();
  };

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_row = warp % 2 * C::kWarpRows, first_col = warp / 2 * C::kWarpCols;
  constexpr int kM = C::kWarpRows / 16, kN = C::kWarpCols / 16;
  float acc[kM][2 * kN][4];
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < 2 * kN; ++j) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
  for (int step = 0; step < kParts - 1; ++step) fetch(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_older_copies<kParts - 2>();
    __syncthreads();  // this chunk has arrived, and all warps have read the previous one
    fetch(step + kParts - 1);
    const T* const as = parts + step % kParts * C::kPart;
    const T* const bs = as + C::kRows * kDepth;
#pragma unroll
    for (int at = 0; at < kDepth; at += 16) {
      uint32_t x[kM][4], y[kN][4];
#pragma unroll
      for (int i = 0; i < kM; ++i) load_left<kLeft, C::kRows>(x[i], as, first_row + 16 * i, at);
#pragma unroll
      for (int j = 0; j < kN; ++j) load_right<kRight, C::kCols>(y[j], bs, first_col + 16 * j, at);
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          multiply_add<T>(acc[i][2 * j], x[i], y[j][0], y[j][1]);
          multiply_add<T>(acc[i][2 * j + 1], x[i], y[j][2], y[j][3]);
        }
    }
  }
  wait_for_copies();
  __syncthreads();

  O* const result = reinterpret_cast<O*>(parts);
  constexpr int kChunk = 16 / static_cast<int>(sizeof(O));
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < 2 * kN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * i + 8 * half + lane / 4, col = first_col + 8 * j + lane % 4 * 2;
        put_pair(result + result_place<O, C::kCols>(row, col / kChunk) + col % kChunk, acc[i][j][2 * half],
                 acc[i][j][2 * half + 1]);
      }
  __syncthreads();
  const int64_t to =
      kGradient ? (t.matrix * n + t.from_row) * int64_t{k} : (t.row + t.from_row) * int64_t{cols};
  write_result<C::kRows, C::kCols, kMmaThreads>(out + to + t.from_col, cols, result,
                                                static_cast<int>(threadIdx.x), rows, out_cols, accumulate);
}

template <class C, GroupedProduct kKind, class T, class O>
void run_mma(Stream& s, const GroupedOperands& o, const GroupRows& rows) {
  for (const GroupTable& t : group_tables(o, rows, C::kRows, C::kCols))
    launch(s, dim3(static_cast<unsigned>(t.tiles)), kMmaThreads, C::template shared<O>,
           grouped_gemm_mma<C, kKind, T, O>, static_cast<O*>(o.out.data), static_cast<const T*>(o.a.data),
           static_cast<const T*>(o.b.data), static_cast<int>(o.n), static_cast<int>(o.k), o.accumulate, t);
}

/// True if tiles of 64 rows pay because groups leave much of 128 empty. The factor 0.6 for the time of a
/// small tile is a guess: neither kernel has run on a card.
bool small_tiles(const GroupRows& rows) {
  int64_t small = 0, large = 0;
  for (int64_t n : rows) small += (n + 63) / 64, large += (n + 127) / 128;
  return 10 * small < 17 * large;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void grouped_gemm_mma_cuda(Stream& s, const GroupedOperands& o, const GroupRows& rows) {
  using Large = Cut<128, 128>;
  using Small = Cut<64, 128>;
  with_gemm_type(o.a.dtype, [&]<class T>() {
    if (o.kind == GroupedProduct::weight_gradient)
      return run_mma<Large, GroupedProduct::weight_gradient, T, float>(s, o, rows);
    const auto with_cut = [&]<class C>() {
      o.kind == GroupedProduct::forward ? run_mma<C, GroupedProduct::forward, T, T>(s, o, rows)
                                        : run_mma<C, GroupedProduct::input_gradient, T, T>(s, o, rows);
    };
    small_tiles(rows) ? with_cut.template operator()<Small>() : with_cut.template operator()<Large>();
  });
}

}  // namespace ltrain
