// Attention on tensor cores: code shared by forward and backward.
//
// A block owns kRows rows of a tile (queries, or keys in the backward for keys) and loops over the tiles of
// the other side. These arrive by asynchronous copies, one tile ahead. Each warp owns 16 kM of the rows. Its
// scores stay in registers as accumulators and become the left operand of the next matmul, so that warps
// synchronize only when tiles are exchanged.
#pragma once
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_tiles.h"
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/soft_cap_cuda.h"

namespace ltrain::cuda {

constexpr int kMmaWarps = 4;
constexpr int kMmaThreads = kMmaWarps * kWarp;

/// Tile sizes of a kernel, for head dims padded to kDim in shared memory. All fit the 99 KiB of shared memory
/// of the smallest cards.
template <int dim, int row_tiles, int other_rows>
struct MmaCut {
  static constexpr int kDim = dim;       ///< head dim, a multiple of 32
  static constexpr int kValue = dim;     ///< channels of a value, a multiple of 32
  static constexpr int kM = row_tiles;   ///< 16-row tiles that a warp owns
  static constexpr int kN = other_rows;  ///< rows of a tile of the other side, a multiple of 16
  static constexpr int kOwn = 16 * kM;   ///< rows that a warp owns
  static constexpr int kRows = kMmaWarps * kOwn;
};

/// MmaCut with values of another width than keys.
template <int dim, int value, int row_tiles, int other_rows>
struct MmaCutOfValues : MmaCut<dim, row_tiles, other_rows> {
  static constexpr int kValue = value;
};
template <int dim, int value, int row_tiles, int other_rows>
using MmaCutFor = std::conditional_t<dim == value, MmaCut<dim, row_tiles, other_rows>,
                                     MmaCutOfValues<dim, value, row_tiles, other_rows>>;

/// Starts the copy of a tile. Rows beyond `count` and channels beyond `dim` become zero.
template <int kDim, int kRows, class T>
__device__ __forceinline__ void fetch_rows(T* to, const T* from, int64_t stride, int64_t count, int dim) {
  constexpr int kChunks = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kChunks; i += kMmaThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool there = row < count && chunk < dim / 8;
    copy_async_16(to + place<kDim>(row, chunk), from + (there ? row * stride + chunk * 8 : 0), there);
  }
}

/// to = scores: the warp's rows of `own`, from row `first` on, times the rows of `other`^T, both kWide
/// channels.
template <class C, int kWide, class T>
__device__ __forceinline__ void row_products(float (&to)[C::kM][C::kN / 8][4], const T* own, int first,
                                             const T* other) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < C::kM; ++m)
#pragma unroll
    for (int n = 0; n < C::kN / 8; ++n) to[m][n][0] = to[m][n][1] = to[m][n][2] = to[m][n][3] = 0;
#pragma unroll
  for (int k = 0; k < kWide / 16; ++k) {
    uint32_t a[C::kM][4];
#pragma unroll
    for (int m = 0; m < C::kM; ++m)
      load_matrices(a[m], own + place<kWide>(first + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < C::kN / 16; ++n) {
      uint32_t b[4];
      load_matrices(b, other + place<kWide>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < C::kM; ++m) {
        multiply_add<T>(to[m][2 * n], a[m], b[0], b[1]);
        multiply_add<T>(to[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// to += weights * `other`, for kOut of the kWide channels, from channel 8 first_chunk on.
template <class C, int kWide, int kOut, class T>
__device__ __forceinline__ void add_weighted(float (&to)[C::kM][kOut / 8][4],
                                             const uint32_t (&weights)[C::kM][C::kN / 16][4], const T* other,
                                             int first_chunk) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < C::kN / 16; ++k)
#pragma unroll
    for (int d = 0; d < kOut / 16; ++d) {
      uint32_t b[4];
      load_transposed(b, other + place<kWide>(16 * k + lane % 16, first_chunk + 2 * d + lane / 16));
#pragma unroll
      for (int m = 0; m < C::kM; ++m) {
        multiply_add<T>(to[m][2 * d], weights[m][k], b[0], b[1]);
        multiply_add<T>(to[m][2 * d + 1], weights[m][k], b[2], b[3]);
      }
    }
}

/// Converts accumulators to a left operand.
template <class C, class T>
__device__ __forceinline__ void as_weights(uint32_t (&to)[C::kM][C::kN / 16][4],
                                           const float (&from)[C::kM][C::kN / 8][4]) {
#pragma unroll
  for (int m = 0; m < C::kM; ++m)
#pragma unroll
    for (int n = 0; n < C::kN / 8; ++n) {
      to[m][n / 2][n % 2 * 2] = pack_pair<T>(from[m][n][0], from[m][n][1]);
      to[m][n / 2][n % 2 * 2 + 1] = pack_pair<T>(from[m][n][2], from[m][n][3]);
    }
}

constexpr float kLog2e = 1.4426950408889634f;

/// Operation on the scores between the two matmuls.
enum class ScoreMode {
  plain,
  dropout,  ///< dropout of the probabilities
  soft_cap  ///< excludes dropout (attention_choice.cpp)
};

/// Soft-capped score and its slope, by 2^x and a division. Both errors are some units in the last place of a
/// float at the cap, far below the rounding of a 16-bit operand.
__device__ __forceinline__ SoftCapped<float> soft_cap_fast(float x, float cap) {
  const float u = x / cap, e = exp2_fast(-2.0f * kLog2e * fabs(u)), inverse = 1.0f / (1.0f + e);
  const float t = (1.0f - e) * inverse;
  return {u < 0 ? -cap * t : cap * t, 4.0f * e * inverse * inverse};
}

/// Calls f<mode>().
template <class F>
void with_score_mode(const AttentionArgs& a, F&& f) {
  LT_CHECK(!a.drop.threshold || a.soft_cap == 0,
           "attention: expected no dropout of probabilities with soft_cap {}, got dropout threshold {}",
           a.soft_cap, a.drop.threshold);
  if (a.soft_cap > 0) return f.template operator()<ScoreMode::soft_cap>();
  a.drop.threshold ? f.template operator()<ScoreMode::dropout>() : f.template operator()<ScoreMode::plain>();
}

/// Reduction over the four lanes that share a row.
template <class F>
__device__ __forceinline__ float quad_reduce(float v, F f) {
  v = f(v, __shfl_xor_sync(kAllLanes, v, 1));
  return f(v, __shfl_xor_sync(kAllLanes, v, 2));
}

/// 0 or 1/(1-p) for the probability of (query, key), by position. Called only with dropout.
inline __device__ float keep_factor(const AttentionArgs& a, int64_t sample, int64_t head, int64_t query,
                                    int64_t key) {
  const DropoutArgs& d = a.drop;
  const Philox4 r =
      philox(d.seed, d.stream, dropout_call(a, sample, head, query) + static_cast<uint64_t>(key) / 4);
  return r.v[key & 3] >= d.threshold ? d.scale : 0.0f;
}

/// Address of the first row of a sample, at the first channel of a head.
template <class T>
__device__ __forceinline__ const T* rows_of(const void* data, int64_t stride, int64_t rows, int64_t sample,
                                            int64_t head, int64_t head_dim) {
  return static_cast<const T*>(data) + sample * rows * stride + head * head_dim;
}

// GCC takes pairs that are neither loaded nor stored for uninitialized reads.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
/// Writes a lane's channels of a row of a gradient: `value(d, i)`, i 0 and 1, are the channels from col + 8 d
/// on, d < pairs <= kPairs. All old values are loaded before the first store: the compiler must assume that
/// stores alias loads, and would otherwise load pair after pair.
template <class T, int kPairs, class F>
__device__ __forceinline__ void give_pairs(const AttentionSink& to, int64_t row, int64_t col, int pairs,
                                           F&& value) {
  const int64_t at = row * to.stride + col;
  const auto give = [&]<class O>(O* out) {
    if (to.add) {
      Pack<O, 2> before[kPairs];
#pragma unroll
      for (int d = 0; d < kPairs; ++d)
        if (d < pairs) before[d] = *reinterpret_cast<const Pack<O, 2>*>(out + 8 * d);
#pragma unroll
      for (int d = 0; d < kPairs; ++d)
        if (d < pairs)
          put_pair(out + 8 * d, get(before[d].v, 0) + value(d, 0), get(before[d].v, 1) + value(d, 1));
    } else {
#pragma unroll
      for (int d = 0; d < kPairs; ++d)
        if (d < pairs) put_pair(out + 8 * d, value(d, 0), value(d, 1));
    }
  };
  to.wide ? give(static_cast<float*>(to.data) + at) : give(static_cast<T*>(to.data) + at);
}
#pragma GCC diagnostic pop

/// Dot products of rows of two matrices over at most kDim channels, 16 bytes a lane at a time, by a block of
/// kMmaThreads.
template <int kDim>
struct RowDot {
  static constexpr int kPacks = kDim / 8;
  static constexpr int kLanes = kPacks > 16 ? 32 : kPacks > 8 ? 16 : 8;  ///< lanes that share a row
  static constexpr int kRows = kMmaThreads / kLanes;
  static_assert(kDim % 8 == 0 && kPacks <= 32);
  static __device__ int row() { return static_cast<int>(threadIdx.x) / kLanes; }
  static __device__ bool first() { return threadIdx.x % kLanes == 0; }
  /// Dot product of the rows of `dim` channels that begin at element `at`; 0 unless `there`. All lanes get
  /// it.
  template <class T>
  static __device__ float of(const T* a, const T* b, int64_t at, int dim, bool there) {
    const int lane = threadIdx.x % kLanes;
    float sum = 0;
    if (there && lane < dim / 8) {
      float x[8], y[8];
      load_values<8>(x, a, at + 8 * lane);
      load_values<8>(y, b, at + 8 * lane);
      for (int i = 0; i < 8; ++i) sum += x[i] * y[i];
    }
    for (int d = kLanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
    return sum;
  }
};

/// Calls f with the padded widths of keys and values.
template <class F>
void with_mma_dims(const AttentionArgs& a, F&& f) {
  LT_CHECK(a.head_dim % 8 == 0 && a.value_dim % 8 == 0 && a.value_dim <= a.head_dim && a.head_dim <= 256,
           "attention on tensor cores: expected head dims that are multiples of 8, values no wider than "
           "keys, at most 256; got head dim {} and value dim {}",
           a.head_dim, a.value_dim);
  if (a.head_dim <= 64) return f.template operator()<64, 64>();
  if (a.head_dim <= 96) return f.template operator()<96, 96>();
  if (a.head_dim <= 128) return f.template operator()<128, 128>();
  if (a.head_dim <= 192 && a.value_dim <= 128) return f.template operator()<192, 128>();
  if (a.head_dim <= 192) return f.template operator()<192, 192>();
  f.template operator()<256, 256>();
}

/// Calls f with the 16-bit type.
template <class F>
void with_mma_type(DType t, F&& f) {
  LT_CHECK(is_half(t), "attention on tensor cores: expected bf16 or f16, got {}", dtype_name(t));
  t == DType::bf16 ? f.template operator()<bf16>() : f.template operator()<f16>();
}

inline dim3 grid_of(const WorkList& list) { return dim3(static_cast<unsigned>(list.pieces())); }

}  // namespace ltrain::cuda
