// Attention on Hopper's tensor cores: what its forward and backward share.
//
// A block owns a tile of rows, 64 for each of its warpgroups that compute, and walks over the tiles of the
// other side. One more warpgroup only copies: it keeps few registers, and the others get what it gives up.
// Between them stand, for each buffer, an mbarrier that says that a tile is there, and one that says that all
// warps are done with it.
#pragma once
#include "kernels/attention/attention_mma_cuda.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/wgmma_cuda.h"

namespace ltrain::cuda {

constexpr int kStages = 2;               ///< buffers of each operand
constexpr int kStepBytes = kStages * 8;  ///< of steps
constexpr float kToLog2 = 1.4426950408889634f;

/// How a kernel cuts its work.
template <int dim, int groups, int other_rows>
struct WgmmaCut {
  static constexpr int kDim = dim;        ///< head dim, a multiple of kPanel
  static constexpr int kGroups = groups;  ///< warpgroups that compute, with 64 rows each
  static constexpr int kRows = 64 * groups;
  static constexpr int kN = other_rows;  ///< rows of a tile of the other side
  static constexpr int kThreads = (groups + 1) * kWarpgroup;
  static constexpr int kOwnBytes = 2 * kRows * dim, kTileBytes = 2 * kN * dim;
  /// Registers of a thread that copies, and of one that computes: of 64 Ki of a multiprocessor.
  static constexpr int kFew = groups == 3 ? 32 : 24, kMany = groups == 3 ? 160 : 240;
};
template <int kDim>
using WgmmaForward = WgmmaCut<kDim, (kDim == 64 ? 3 : 2), 128>;
template <int kDim>
using WgmmaQueries = WgmmaCut<kDim, 2, 96>;
template <int kDim>
using WgmmaKeys = WgmmaCut<kDim, 2, (kDim == 64 ? 96 : 64)>;

/// Heads of a matrix (batch * rows, stride) as (columns, rows of a run, runs, samples), so that rows beyond a
/// run arrive as zeros: what another sample has there may be infinite, and infinity times a probability of
/// zero is not zero.
inline TensorMap head_map(const void* data, int64_t stride, int64_t columns, const Positions& at,
                          int64_t batch, int box_rows) {
  const int64_t runs = at.rows > at.split ? 2 : 1;
  return make_tensor_map(data, {{columns, at.split, runs, batch},
                                {2 * stride, 2 * stride * at.split, 2 * stride * at.rows},
                                box_rows});
}

#ifdef LT_HOPPER

/// A tile in few registers: sequences are shorter than 2^31.
struct ShortTile {
  int row, count, at;
  __device__ ShortTile(const Tile& t)
      : row(static_cast<int>(t.row)), count(static_cast<int>(t.count)), at(static_cast<int>(t.at)) {}
};

/// A tile of the other side, as the warpgroup that copies tells the others: it alone knows which are to come.
/// In shared memory, one for each buffer; what announces the tile's bytes shows it to those that wait for
/// them.
struct Step {
  int at, packed;
  /// No rows: there is not even a first tile. `hidden`: some query may not see some row.
  static __device__ Step of(int at, int count, bool hidden, bool more) {
    return {at, 4 * count + 2 * hidden + more};
  }
  static __device__ Step nothing() { return {0, 0}; }
  __device__ int count() const { return packed / 4; }
  __device__ bool hidden() const { return packed & 2; }
  __device__ bool more() const { return packed & 1; }  ///< another one follows
};
static_assert(kStages * sizeof(Step) == kStepBytes);
__device__ __forceinline__ Step read_step(const Step* step) {
  return {uniform(step->at), uniform(step->packed)};
}

/// Over the tiles of keys that some query of a tile sees.
struct KeyWalk {
  Tiles tiles;
  ShortTile queries;
  int lowest, highest, j = 0;  ///< where the document of the first and of the last query begins
  __device__ KeyWalk(const AttentionArgs& a, const Mask& mask, const ShortTile& queries, int rows)
      : tiles(a.k_at, rows),
        queries(queries),
        lowest(static_cast<int>(mask.lowest(queries.at))),
        highest(static_cast<int>(mask.lowest(queries.at + queries.count - 1))) {
    seek();
  }
  __device__ bool ended() const { return j >= tiles.total; }
  __device__ ShortTile next() {
    const ShortTile t = tiles[j++];
    seek();
    return t;
  }
  __device__ bool hides(const ShortTile& keys) const {
    return keys.count < tiles.block || keys.at + keys.count - 1 > queries.at || highest > keys.at;
  }
  __device__ void seek() {
    for (; !ended(); ++j)
      if (const ShortTile t = tiles[j]; t.at < queries.at + queries.count && t.at + t.count > lowest) return;
  }
};

/// Begins to copy a tile of a head.
template <int kDim, int kRows, class T>
__device__ __forceinline__ void load_tile(T* to, const TensorMap& map, Mbarrier* there, const Positions& at,
                                          const ShortTile& tile, int64_t sample, int64_t head) {
  const int run = tile.row >= at.split ? 1 : 0;
#pragma unroll
  for (int p = 0; p < kDim / kPanel; ++p)
    load_box(to + p * kPanel * kRows, map, there, head * kDim + p * kPanel, tile.row - run * at.split, run,
             sample);
}

/// Begins s = the warpgroup's 64 rows of `own`, from `first` on, times the rows of `other`: scores.
template <class T, int kDim, int kOwnRows, int kN>
__device__ __forceinline__ void begin_scores(float (&s)[kN / 2], const T* own, int first, const T* other) {
#pragma unroll
  for (int k = 0; k < kDim; k += 16)
    wgmma<T, kN>(s, along_columns(own, kOwnRows, first, k), along_columns(other, kN, 0, k), k > 0);
}

/// Begins acc += weights times the rows of `other`.
template <class T, int kDim, int kN>
__device__ __forceinline__ void begin_sums(float (&acc)[kDim / 2], const uint32_t (&weights)[kN / 16][4],
                                           const T* other) {
#pragma unroll
  for (int k = 0; k < kN; k += 16)
    wgmma<T, kDim, Along::rows>(acc, weights[k / 16], along_rows(other, kN, 0, k), true);
}

/// wgmma_wait(), and not before `computed` is. ptxas moves a wait for products up as far as the results
/// allow, over the exponentials of a tile too ("memory" orders what nvcc does, not what ptxas does), but over
/// no branch on what lies in memory. `passed`: a phase that has been waited for before;
/// scripts/kernel-products.py counts in the machine code.
template <int groups_left, int n>
__device__ __forceinline__ void wgmma_wait_behind(float (&computed)[n], Mbarrier* passed, int parity) {
  in_flight(computed);
  mbarrier_wait(passed, parity);
  wgmma_wait<groups_left>();
}

/// Accumulators as a left operand.
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
  LT_CHECK(head_dim == 64 || head_dim == 128, "attention of head dim {} on Hopper's tensor cores", head_dim);
  head_dim == 64 ? f.template operator()<64>() : f.template operator()<128>();
}

}  // namespace ltrain::cuda
