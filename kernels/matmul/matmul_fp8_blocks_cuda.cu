// FP8 matmuls with a step for each block of 128 elements along the contraction (arXiv:2412.19437, 3.3.2), on
// A100 and later. A block of threads computes one output tile. It widens codes to fp16, which is exact, on
// their way into shared memory. mma.sync sums kFp8Block products in fp32; the sum is multiplied by both steps
// and added to the output in registers.
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/matmul/matmul_fp8.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kMatmulThreads = 8 * kWarp;  ///< eight warps, 2 x 4
constexpr int kTile = 128;  ///< rows and columns of a tile, and contraction length of one round
constexpr int kWarpTileRows = 64, kWarpTileCols = 32;  ///< tile of a warp
constexpr int kM = kWarpTileRows / 16, kN = kWarpTileCols / 8;
constexpr int kCodePack = 16;  ///< codes in 16 bytes
constexpr int kPacks = kTile / kCodePack, kAtOnce = kMatmulThreads / kPacks, kLoads = kTile / kAtOnce;
static_assert(kTile == kFp8Block);

/// Widens four codes to two words of two fp16 numbers, times kTimes, by moving bits only.
template <class E>
struct Widen;
template <>
struct Widen<E4m3> {
  static constexpr float kTimes = 0x1p-8f;                       ///< the exponent biases are 15 and 7
  static __device__ __forceinline__ uint32_t pair(uint32_t c) {  // codes in bits 0-7 and 16-23
    const uint32_t magnitude = c & 0x007f007fu;
    const uint32_t nan = ((magnitude + 0x00010001u) & 0x00800080u) >> 7;  // 0x7f is the only NaN
    return (c & 0x00800080u) << 8 | magnitude << 7 | nan * 0x7e00u;
  }
};
template <>
struct Widen<E5m2> {
  static constexpr float kTimes = 1;
  static __device__ __forceinline__ uint32_t pair(uint32_t c) { return c << 8; }
};

/// A matrix of codes (rows, k) and its steps.
struct Operand {
  const uint8_t* codes;
  const float* steps;
  int64_t rows, k;
  int64_t across;  ///< steps in a row of blocks
  int block_rows;
};

/// Codes of a tile on their way into shared memory: kLoads times 16 for each thread.
struct Codes {
  uint32_t word[kLoads][4];

  /// Loads rows from `row` on and columns from `at` on; zeros beyond the matrix.
  template <bool kWhole>
  __device__ __forceinline__ void load(const Operand& o, int64_t row, int64_t at) {
    const int64_t col = at + threadIdx.x % kPacks * kCodePack;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t r = row + threadIdx.x / kPacks + i * kAtOnce;
      for (int j = 0; j < 4; ++j) word[i][j] = 0;
      if (r >= o.rows) continue;
      const uint8_t* const from = o.codes + r * o.k + col;
      if constexpr (kWhole) {
        if (col >= o.k) continue;
        const auto four = cuda::load<uint32_t, 4>(reinterpret_cast<const uint32_t*>(from), 0);
        for (int j = 0; j < 4; ++j) word[i][j] = four.v[j];
      } else {
        for (int j = 0; j < kCodePack; ++j)
          if (col + j < o.k) word[i][j / 4] |= static_cast<uint32_t>(load_one(from, j)) << 8 * (j % 4);
      }
    }
  }
  /// Stores them as fp16, kTile in a row, in the layout of place().
  template <class E>
  __device__ __forceinline__ void store(f16* tile) const {
    const int pack = threadIdx.x % kPacks;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = threadIdx.x / kPacks + i * kAtOnce;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Pack<uint32_t, 4> to;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t w = word[i][2 * half + j];
          to.v[2 * j] = Widen<E>::pair((w & 0xffu) | (w & 0xff00u) << 8);
          to.v[2 * j + 1] = Widen<E>::pair((w >> 16 & 0xffu) | (w >> 8 & 0xff0000u));
        }
        *reinterpret_cast<Pack<uint32_t, 4>*>(tile + place<kTile>(row, 2 * pack + half)) = to;
      }
    }
  }
};

/// Step of each row of a tile, in block `block` along the contraction, divided by the factor of Widen.
template <class E>
__device__ __forceinline__ void load_steps(float* to, const Operand& o, int64_t row, int64_t block, int i) {
  const int64_t r = row + i;
  if (i >= 0 && i < kTile)
    to[i] = r < o.rows ? load_one(o.steps, r / o.block_rows * o.across + block) * (1 / Widen<E>::kTimes) : 0;
}

constexpr int64_t kShared = 2 * kTile * kTile * 2 + 2 * kTile * 4;

template <class A, class B, class O, bool kWhole>
__global__ void __launch_bounds__(kMatmulThreads, 1)
    multiply_blocks(O* out, Operand a, Operand b, const O* bias, bool accumulate) {
  f16 *const as = shared_memory<f16>(), *const bs = as + kTile * kTile;
  float *const a_steps = reinterpret_cast<float*>(bs + kTile * kTile), *const b_steps = a_steps + kTile;
  const int64_t row0 = int64_t{blockIdx.x} * kTile, col0 = int64_t{blockIdx.y} * kTile;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_row = warp % 2 * kWarpTileRows, first_col = warp / 2 * kWarpTileCols;
  const bool some = row0 + first_row < a.rows && col0 + first_col < b.rows;  // uniform over a warp
  float sums[kM][kN][4] = {};
  Codes from_a, from_b;
  from_a.load<kWhole>(a, row0, 0);
  from_b.load<kWhole>(b, col0, 0);
  for (int64_t at = 0; at < a.k; at += kTile) {
    __syncthreads();  // all warps have read the previous chunk
    from_a.store<A>(as);
    from_b.store<B>(bs);
    load_steps<A>(a_steps, a, row0, at / kTile, threadIdx.x);
    load_steps<B>(b_steps, b, col0, at / kTile, threadIdx.x - kTile);
    __syncthreads();
    if (at + kTile < a.k) {
      from_a.load<kWhole>(a, row0, at + kTile);
      from_b.load<kWhole>(b, col0, at + kTile);
    }
    if (!some) continue;
    const int summed = static_cast<int>(a.k - at < kTile ? a.k - at : kTile);
    float part[kM][kN][4] = {};
    for (int k = 0; k < summed; k += 16) {
      uint32_t x[kM][4], y[kN / 2][4];
#pragma unroll
      for (int i = 0; i < kM; ++i)
        load_matrices(x[i], as + place<kTile>(first_row + 16 * i + lane % 16, k / 8 + lane / 16));
#pragma unroll
      for (int j = 0; j < kN / 2; ++j)
        load_matrices(y[j],
                      bs + place<kTile>(first_col + 16 * j + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int j = 0; j < kN; ++j)
          multiply_add<f16>(part[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[i][j][e] += part[i][j][e] * a_steps[first_row + 16 * i + e / 2 * 8 + lane / 4] *
                           b_steps[first_col + 8 * j + lane % 4 * 2 + e % 2];
  }
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t row = row0 + first_row + 16 * i + e / 2 * 8 + lane / 4;
        const int64_t col = col0 + first_col + 8 * j + lane % 4 * 2 + e % 2;
        if (row >= a.rows || col >= b.rows) continue;
        float v = sums[i][j][e];
        if (bias) v += static_cast<float>(load_one(bias, col));
        if constexpr (sizeof(O) == 4)
          if (accumulate) v += load_one(out, row * b.rows + col);
        store_one(out, row * b.rows + col, O(v));
      }
}

/// Arithmetic of tests: one thread for each element.
template <class A, class B>
__global__ void multiply_wide(double* out, Operand a, Operand b, const double* bias, bool accumulate) {
  for (int64_t i = grid_thread(); i < a.rows * b.rows; i += grid_stride()) {
    const int64_t row = i / b.rows, col = i % b.rows;
    double sum = bias ? load_one(bias, col) : 0;
    if (accumulate) sum += load_one(out, i);
    for (int64_t k = 0; k < a.k; ++k) {
      const float step_a = load_one(a.steps, row / a.block_rows * a.across + k / kTile);
      const float step_b = load_one(b.steps, col / b.block_rows * b.across + k / kTile);
      sum += double{A::from(load_one(a.codes, row * a.k + k)) * step_a} *
             double{B::from(load_one(b.codes, col * b.k + k)) * step_b};
    }
    store_one(out, i, sum);
  }
}

Operand operand_of(const Fp8Operand& o) {
  return {static_cast<const uint8_t*>(o.codes.data),
          o.steps.ptr<float>(),
          o.codes.shape[0],
          o.codes.shape[1],
          o.steps.shape[-1],
          static_cast<int>(o.block_rows)};
}

template <class A, class B>
void run(Stream& s, const Tensor& out, const Operand& a, const Operand& b, const Tensor& bias,
         bool accumulate) {
  if (out.dtype == DType::f64)
    return launch(s, blocks_for(a.rows * b.rows, 256), 256, 0, multiply_wide<A, B>, out.ptr<double>(), a, b,
                  bias.defined() ? bias.ptr<double>() : nullptr, accumulate);
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  LT_CHECK(tiles(b.rows) <= 65535,
           "FP8 matmul with blocks: expected at most {} columns of the output, got {}",
           int64_t{65535} * kTile, b.rows);
  const bool whole = a.k % kCodePack == 0 && aligned({a.codes, b.codes});
  dispatch_float(out.dtype, [&]<class O>() {
    if constexpr (sizeof(O) <= 4)
      launch(s, dim3(tiles(a.rows), tiles(b.rows)), kMatmulThreads, kShared,
             whole ? multiply_blocks<A, B, O, true> : multiply_blocks<A, B, O, false>,
             static_cast<O*>(out.data), a, b, static_cast<const O*>(bias.data), accumulate);
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void matmul_fp8_blocks_cuda(Stream& s, Tensor out, const Fp8Operand& a, const Fp8Operand& b,
                            const MatmulArgs& args) {
  LT_CHECK(!args.accumulate || !is_half(out.dtype),
           "FP8 matmul with blocks: expected f32 or f64 output with accumulate, got {}",
           dtype_name(out.dtype));
  if (out.elements() == 0) return;
  const Operand left = operand_of(a), right = operand_of(b);
  const auto with = [&]<class A, class B>() {
    cuda::run<A, B>(s, out, left, right, args.bias, args.accumulate);
  };
  // No device multiplies e5m2 by e5m2, and no caller asks for it.
  LT_CHECK(a.codes.dtype != DType::f8e5m2 || b.codes.dtype != DType::f8e5m2,
           "FP8 matmul with blocks: expected at least one operand of f8e4m3, got two of f8e5m2");
  if (a.codes.dtype == DType::f8e5m2)
    with.template operator()<E5m2, E4m3>();
  else if (b.codes.dtype == DType::f8e5m2)
    with.template operator()<E4m3, E5m2>();
  else
    with.template operator()<E4m3, E4m3>();
}

}  // namespace ltrain
