// Attention on Hopper's tensor cores: code shared by forward and backward.
//
// A block owns a tile of rows, 64 for each of its compute warpgroups, and loops over the tiles of the other
// side. The forward then takes another tile. One more warpgroup only copies: it keeps few registers and
// leaves the rest to the others. Each buffer has two mbarriers: one says that a tile has arrived, the other
// that all warps have finished with it.
#pragma once
#include "kernels/attention/attention_mma_cuda.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/wgmma_cuda.h"

namespace ltrain::cuda {

constexpr int kStages = 2;  ///< buffers of each operand, unless a kernel has its own number
constexpr float kToLog2 = 1.4426950408889634f;

/// Tile sizes of a kernel. `few`: registers of a copying thread, which goes from one piece of the list to the
/// next; the others of 64 Ki for each multiprocessor are for computing threads.
template <int dim, int groups, int other_rows, int few>
struct WgmmaCut {
  static constexpr int kDim = dim;        ///< head dim, a multiple of kPanel
  static constexpr int kGroups = groups;  ///< compute warpgroups, with 64 rows each
  static constexpr int kRows = 64 * groups;
  static constexpr int kN = other_rows;  ///< rows of a tile of the other side
  static constexpr int kThreads = (groups + 1) * kWarpgroup;
  static constexpr int kOwnBytes = 2 * kRows * dim, kTileBytes = 2 * kN * dim;
  static constexpr int kFew = few, kMany = (512 - few) / groups / 8 * 8;
};
template <int kDim>
using WgmmaForward = WgmmaCut<kDim, (kDim == 64 ? 3 : 2), 128, (kDim == 64 ? 32 : 40)>;
template <int kDim>
using WgmmaQueries = WgmmaCut<kDim, 2, 96, 40>;
template <int kDim>
using WgmmaKeys = WgmmaCut<kDim, 2, (kDim == 64 ? 96 : 64), 24>;

constexpr int kStoreRows = 16;  ///< rows of a box of results: the rows of a warp

/// Tensor map of the heads of a matrix (batch * rows, stride) of two-byte elements, as (columns, rows of a
/// run, runs, samples). Rows beyond a run therefore arrive as zeros: the next sample's rows could be
/// infinite, and infinity times a probability of zero is NaN.
inline TensorMap head_map(const void* data, int64_t stride, int64_t columns, const Positions& at,
                          int64_t batch, int box_rows) {
  const int64_t runs = at.rows > at.split ? 2 : 1;
  return make_tensor_map(data, {{columns, at.split, runs, batch},
                                {2 * stride, 2 * stride * at.split, 2 * stride * at.rows},
                                box_rows});
}

/// An 8-byte word in shared memory for each barrier and each step.
constexpr int64_t barrier_bytes(int barriers, int steps) { return 8 * (barriers + steps); }

#ifdef LT_HOPPER

/// A tile in few registers: sequences are shorter than 2^31.
struct ShortTile {
  int row, count, at;
  __device__ ShortTile(const Tile& t)
      : row(static_cast<int>(t.row)), count(static_cast<int>(t.count)), at(static_cast<int>(t.at)) {}
  __device__ operator Tile() const { return {row, count, at}; }
};

/// A tile of the other side, announced by the copying warpgroup, which alone has the list of tiles. One lies
/// in shared memory for each buffer. The mbarrier of the tile's bytes also makes the step visible to the
/// waiting warps.
struct Step {
  int at, packed;
  /// `count` 0: the list of tiles is empty. `hidden`: some query may not see some row. `more`: another step
  /// follows.
  static __device__ Step of(int at, int count, bool hidden, bool more) {
    return {at, 4 * count + 2 * hidden + more};
  }
  static __device__ Step nothing() { return {0, 0}; }
  /// Step of a tile of keys for a tile of queries. The last query sees no key before `highest`.
  static __device__ Step keys(const ShortTile& keys, int block, const ShortTile& queries, int highest,
                              bool more) {
    const bool hidden = keys.count < block || keys.at + keys.count - 1 > queries.at || highest > keys.at;
    return of(keys.at, keys.count, hidden, more);
  }
  __device__ int count() const { return packed / 4; }
  __device__ bool hidden() const { return packed & 2; }
  __device__ bool more() const { return packed & 1; }  ///< another step follows
};
__device__ __forceinline__ Step read_step(const Step* step) {
  return {uniform(step->at), uniform(step->packed)};
}

/// BinarySearch (attention_tiles.h) by all lanes of a warp, 32 numbers at a time. Its time grows with the
/// number found.
struct WarpSearch {
  template <class F>
  __device__ int operator()(int from, int until, F&& seen) const {
    for (;;) {
      const int mine = from + threadIdx.x % kWarp;
      const int found = __popc(__ballot_sync(kAllLanes, mine < until && seen(mine)));
      from += found;
      if (found < kWarp) return from;
    }
  }
};

/// Starts the copy of a tile of a head.
template <int kDim, int kRows, class T>
__device__ __forceinline__ void load_tile(T* to, const TensorMap& map, Mbarrier* there, const Positions& at,
                                          const ShortTile& tile, int64_t sample, int64_t head) {
  const int run = tile.row >= at.split ? 1 : 0;
#pragma unroll
  for (int p = 0; p < kDim / kPanel; ++p)
    load_box(to + p * kPanel * kRows, map, there, head * kDim + p * kPanel, tile.row - run * at.split, run,
             sample);
}

/// Element index of columns `col` and col + 1 of a row in a warp's results, which are boxes of kStoreRows
/// rows.
template <class O>
__device__ __forceinline__ int place_in_boxes(int row, int col) {
  constexpr int kWide = kPanelBytes / static_cast<int>(sizeof(O)), kPart = 16 / static_cast<int>(sizeof(O));
  const int part = col % kWide / kPart ^ row % 8;
  return (col / kWide * kStoreRows + row) * kWide + part * kPart + col % kPart;
}

/// Starts the store of a warp's results to a head's tile, from row `first` of the tile on. `map`: two-byte
/// elements.
template <int kDim, class O>
__device__ __forceinline__ void store_rows(const TensorMap& map, const O* from, const Positions& at,
                                           const ShortTile& tile, int first, int64_t sample, int64_t head) {
  constexpr int kBytes = kDim * static_cast<int>(sizeof(O));
  const int run = tile.row >= at.split ? 1 : 0;
#pragma unroll
  for (int p = 0; p < kBytes / kPanelBytes; ++p)
    store_box(map, from + p * kStoreRows * kPanelBytes / sizeof(O), head * (kBytes / 2) + p * kPanel,
              tile.row - run * at.split + first, run, sample);
  commit_stores();
}

/// Writes one of the two row halves of a lane's accumulator, times `scale`, to a row of a gradient, from
/// channel `col` on. Old values are loaded before the first store.
template <class T, int n>
__device__ __forceinline__ void give_row(const AttentionSink& to, int64_t row, int64_t col,
                                         const float (&acc)[n], int half, float scale) {
  give_pairs<T, n / 4>(to, row, col, n / 4, [&](int d, int i) { return acc[4 * d + 2 * half + i] * scale; });
}

/// Starts s = scores: the warpgroup's 64 rows of `own`, from row `first` on, times the rows of `other`^T.
template <class T, int kDim, int kOwnRows, int kN>
__device__ __forceinline__ void begin_scores(float (&s)[kN / 2], const T* own, int first, const T* other) {
#pragma unroll
  for (int k = 0; k < kDim; k += 16)
    wgmma<T, kN>(s, along_columns(own, kOwnRows, first, k), along_columns(other, kN, 0, k), k > 0);
}

/// A warpgroup's rows of a tile as left operands of scores: in shared memory, which a matmul reads anew for
/// each tile of the other side (2 of the 5 bytes that it reads there), or with kHeld in registers.
template <class C, class T, bool kHeld>
struct OwnRows {
  const T* tile;
  uint32_t held[kHeld ? C::kDim / 16 : 1][4] = {};
  /// After the tile has arrived. `first`: first row of the warp. With kHeld the tile is free afterwards.
  __device__ __forceinline__ void take(int first) {
    const int lane = threadIdx.x % kWarp, row = first + lane % 16;
#pragma unroll
    for (int k = 0; kHeld && k < C::kDim / 16; ++k) {
      const int part = 2 * k % 8 + lane / 16;  // 16 bytes of a panel's row
      load_matrices(held[k], tile + (2 * k / 8 * C::kRows + row) * kPanel + (part ^ row % 8) * 8);
    }
  }
  /// begin_scores() of the rows from `group_first` on.
  __device__ __forceinline__ void begin(float (&s)[C::kN / 2], int group_first, const T* other) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < C::kDim; k += 16)
        wgmma<T, C::kN>(s, held[k / 16], along_columns(other, C::kN, 0, k), k > 0);
    } else {
      begin_scores<T, C::kDim, C::kRows, C::kN>(s, tile, group_first, other);
    }
  }
};

/// Starts acc += weights * `other`.
template <class T, int kDim, int kN>
__device__ __forceinline__ void begin_sums(float (&acc)[kDim / 2], const uint32_t (&weights)[kN / 16][4],
                                           const T* other) {
#pragma unroll
  for (int k = 0; k < kN; k += 16)
    wgmma<T, kDim, Along::rows>(acc, weights[k / 16], along_rows(other, kN, 0, k), true);
}

/// wgmma_wait() that does not start before `computed`, a value >= 0, is known. ptxas hoists a wait for wgmma
/// as far as its results allow, even above the exponentials of a tile: "memory" binds nvcc and not ptxas. It
/// does not hoist above a branch on a computed value. `passed`: a barrier phase that was already waited for.
/// scripts/gpu/kernel-products.py counts the waits in the machine code.
template <int groups_left>
__device__ __forceinline__ void wgmma_wait_behind(float computed, Mbarrier* passed, int parity) {
  if (computed < 0) mbarrier_wait(passed, parity);
  wgmma_wait<groups_left>();
}

/// Converts accumulators to a left operand.
template <class T, int kN>
__device__ __forceinline__ void as_left(uint32_t (&to)[kN / 16][4], const float (&from)[kN / 2]) {
#pragma unroll
  for (int k = 0; k < kN / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[k][i] = pack_pair<T>(from[8 * k + 2 * i], from[8 * k + 2 * i + 1]);
}

#endif

/// Calls f with the head dim.
template <class F>
void with_wgmma_dim(int64_t head_dim, F&& f) {
  LT_CHECK(head_dim == 64 || head_dim == 128,
           "attention on Hopper's tensor cores: expected head dim 64 or 128, got {}", head_dim);
  head_dim == 64 ? f.template operator()<64>() : f.template operator()<128>();
}

}  // namespace ltrain::cuda
