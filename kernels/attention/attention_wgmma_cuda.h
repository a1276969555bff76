// Attention on Hopper's tensor cores: what its forward and backward share.
//
// A block owns a tile of rows, 64 for each of its warpgroups that compute, and walks over the tiles of the
// other side; in the forward it then takes another one. One more warpgroup only copies: it keeps few
// registers, and the others get what it gives up. Between them stand, for each buffer, an mbarrier that says
// that a tile is there, and one that says that all warps are done with it.
#pragma once
#include "kernels/attention/attention_mma_cuda.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/wgmma_cuda.h"

namespace ltrain::cuda {

constexpr int kStages = 2;  ///< buffers of each operand, where a kernel does not say otherwise
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
/// Its thread that copies goes from one piece of the list to the next.
template <int dim>
struct WgmmaForward : WgmmaCut<dim, (dim == 64 ? 3 : 2), 128> {
  static constexpr int kFew = dim == 64 ? 32 : 40, kMany = dim == 64 ? 160 : 232;
};
template <int kDim>
using WgmmaQueries = WgmmaCut<kDim, 2, 96>;
template <int kDim>
using WgmmaKeys = WgmmaCut<kDim, 2, (kDim == 64 ? 96 : 64)>;

constexpr int kStoreRows = 16;  ///< of a box of results: those of a warp

/// Heads of a matrix (batch * rows, stride) of two-byte elements as (columns, rows of a run, runs, samples),
/// so that rows beyond a run arrive as zeros: what another sample has there may be infinite, and infinity
/// times a probability of zero is not zero.
inline TensorMap head_map(const void* data, int64_t stride, int64_t columns, const Positions& at,
                          int64_t batch, int box_rows) {
  const int64_t runs = at.rows > at.split ? 2 : 1;
  return make_tensor_map(data, {{columns, at.split, runs, batch},
                                {2 * stride, 2 * stride * at.split, 2 * stride * at.rows},
                                box_rows});
}

/// An 8-byte word in shared memory for each of the barriers, and for each of the steps.
constexpr int64_t barrier_bytes(int barriers, int steps) { return 8 * (barriers + steps); }

#ifdef LT_HOPPER

/// A tile in few registers: sequences are shorter than 2^31.
struct ShortTile {
  int row, count, at;
  __device__ ShortTile(const Tile& t)
      : row(static_cast<int>(t.row)), count(static_cast<int>(t.count)), at(static_cast<int>(t.at)) {}
  __device__ operator Tile() const { return {row, count, at}; }
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
  /// Of keys for a tile of queries, the last of which sees none before `highest`.
  static __device__ Step keys(const ShortTile& keys, int block, const ShortTile& queries, int highest,
                              bool more) {
    const bool hidden = keys.count < block || keys.at + keys.count - 1 > queries.at || highest > keys.at;
    return of(keys.at, keys.count, hidden, more);
  }
  __device__ int count() const { return packed / 4; }
  __device__ bool hidden() const { return packed & 2; }
  __device__ bool more() const { return packed & 1; }  ///< another one follows
};
__device__ __forceinline__ Step read_step(const Step* step) {
  return {uniform(step->at), uniform(step->packed)};
}

/// BinarySearch (attention_tiles.h) by all lanes of a warp, 32 at a time: as long as what it finds.
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

/// Where columns `col` and col + 1 of a row lie in a warp's results, which are boxes of kStoreRows rows.
template <class O>
__device__ __forceinline__ int place_in_boxes(int row, int col) {
  constexpr int kWide = kPanelBytes / static_cast<int>(sizeof(O)), kPart = 16 / static_cast<int>(sizeof(O));
  const int part = col % kWide / kPart ^ row % 8;
  return (col / kWide * kStoreRows + row) * kWide + part * kPart + col % kPart;
}

/// Begins to store a warp's results: of a head's tile, from its row `first` on. `map`: of two-byte elements.
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

/// One of two halves of a lane's rows of an accumulator, times `scale`, to a row of a gradient from the
/// lane's first channel `col` on. What is added to is loaded before anything is stored.
template <class T, int n>
__device__ __forceinline__ void give_row(const AttentionSink& to, int64_t row, int64_t col,
                                         const float (&acc)[n], int half, float scale) {
  give_pairs<T, n / 4>(to, row, col, n / 4, [&](int d, int i) { return acc[4 * d + 2 * half + i] * scale; });
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

/// wgmma_wait(), but not before `computed`, which is not negative, is known. ptxas moves a wait for products
/// up as far as the results allow, over the exponentials of a tile too ("memory" orders what nvcc does, not
/// what ptxas does), but over no branch on what is computed. `passed`: a phase that has been waited for
/// before; scripts/gpu/kernel-products.py counts in the machine code.
template <int groups_left>
__device__ __forceinline__ void wgmma_wait_behind(float computed, Mbarrier* passed, int parity) {
  if (computed < 0) mbarrier_wait(passed, parity);
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
