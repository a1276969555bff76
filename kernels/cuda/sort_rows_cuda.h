// Stable radix sort of rows by key, from the lowest digit on, in the stream's scratch. Its work is
// proportional to the rows. Its result is a function of the keys alone: warps count their own rows in order,
// without atomics.
#pragma once
#include <bit>

#include "kernels/cuda/pack_cuda.h"

namespace ltrain::cuda {

constexpr int kSortThreads = 256, kSortWarps = kSortThreads / kWarp;
constexpr int kSortRounds = 8;                         // rows of a lane
constexpr int kSortTile = kSortThreads * kSortRounds;  // rows of a block
constexpr int kMostDigitBits = 10;                     // 32 KiB of counts for each block
constexpr int kScanThreads = 1024;
/// Most rows of one sort: 18 of the scratch's 32 MiB.
constexpr int64_t kMostSortedRows = int64_t{1} << 20;

/// keys[i], rows[i]: key and row number of the i-th row in order.
struct SortedRows {
  const uint32_t *keys, *rows;
};

/// Source of the first pass: rows in their own order, with keys from `key`. RowsOfPass: the output of an
/// earlier pass.
template <class Key>
struct RowsInOrder {
  Key key;
  int64_t first;
  __device__ uint32_t key_of(int64_t i) const { return key(first + i); }
  __device__ uint32_t row_of(int64_t i) const { return static_cast<uint32_t>(i); }
};
struct RowsOfPass {
  const uint32_t *keys, *rows;
  __device__ uint32_t key_of(int64_t i) const { return load_one(keys, i); }
  __device__ uint32_t row_of(int64_t i) const { return load_one(rows, i); }
};

struct Digit {
  int shift, bits;
  __device__ uint32_t operator()(uint32_t key) const { return key >> shift & ((1u << bits) - 1); }
};

/// Row of this lane in `round`; a warp has consecutive rows.
inline __device__ int64_t sorted_row(int round) {
  const int64_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return int64_t{blockIdx.x} * kSortTile + (warp * kSortRounds + round) * kWarp + lane;
}

/// counts[warp, digit] += rows of the warp with the digit. counts must be zero.
template <class Source>
__device__ void count_digits(uint32_t* counts, const Source& from, Digit digit, int64_t n) {
  uint32_t* own = counts + (threadIdx.x / kWarp << digit.bits);
  const unsigned before = (1u << threadIdx.x % kWarp) - 1;
  for (int round = 0; round < kSortRounds; ++round) {
    const int64_t i = sorted_row(round);
    const uint32_t d = i < n ? digit(from.key_of(i)) : ~0u;  // no digit is all ones
    const unsigned same = __match_any_sync(kAllLanes, d);
    if (d != ~0u && !(same & before)) own[d] += static_cast<uint32_t>(__popc(same));
    __syncwarp();
  }
}

inline __device__ void clear_counts(uint32_t* counts, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) counts[i] = 0;
  __syncthreads();
}

/// totals[digit, block] = rows of the block with that digit.
template <class Source>
__global__ void digit_totals(uint32_t* totals, Source from, Digit digit, int64_t n) {
  uint32_t* counts = shared_memory<uint32_t>();
  clear_counts(counts, kSortWarps << digit.bits);
  count_digits(counts, from, digit, n);
  __syncthreads();
  for (int d = threadIdx.x; d < 1 << digit.bits; d += blockDim.x) {
    uint32_t sum = 0;
    for (int warp = 0; warp < kSortWarps; ++warp) sum += counts[(warp << digit.bits) + d];
    store_one(totals, int64_t{d} * gridDim.x + blockIdx.x, sum);
  }
}

/// Exclusive prefix sum: totals[i] = sum of the totals before i. One block.
inline __global__ void sum_totals(uint32_t* totals, int64_t n) {
  uint32_t* of_warp = shared_memory<uint32_t>();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  uint32_t carried = 0;
  for (int64_t first = 0; first < n; first += blockDim.x) {
    const int64_t i = first + threadIdx.x;
    const uint32_t mine = i < n ? load_one(totals, i) : 0;
    uint32_t sum = mine;  // sum of the warp up to this lane
    for (int d = 1; d < kWarp; d *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == kWarp - 1) of_warp[warp] = sum;
    __syncthreads();
    uint32_t before = carried;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) before += of_warp[w];
      carried += of_warp[w];
    }
    if (i < n) store_one(totals, i, before + sum - mine);
    __syncthreads();
  }
}

/// Moves each row to its position: after rows with smaller digits, then after those of earlier blocks and
/// warps, then after earlier rows of its warp.
template <class Source>
__global__ void put_in_order(uint32_t* keys, uint32_t* rows, const uint32_t* places, Source from, Digit digit,
                             int64_t n) {
  uint32_t* counts = shared_memory<uint32_t>();
  clear_counts(counts, kSortWarps << digit.bits);
  count_digits(counts, from, digit, n);
  __syncthreads();
  for (int d = threadIdx.x; d < 1 << digit.bits; d += blockDim.x) {
    uint32_t place = load_one(places, int64_t{d} * gridDim.x + blockIdx.x);
    for (int warp = 0; warp < kSortWarps; ++warp) {
      uint32_t& count = counts[(warp << digit.bits) + d];
      const uint32_t next = place + count;
      count = place;
      place = next;
    }
  }
  __syncthreads();
  uint32_t* own = counts + (threadIdx.x / kWarp << digit.bits);
  const unsigned before = (1u << threadIdx.x % kWarp) - 1;
  for (int round = 0; round < kSortRounds; ++round) {
    const int64_t i = sorted_row(round);
    const uint32_t key = i < n ? from.key_of(i) : 0, d = i < n ? digit(key) : ~0u;
    const unsigned same = __match_any_sync(kAllLanes, d);
    const uint32_t place = d == ~0u ? 0 : own[d] + static_cast<uint32_t>(__popc(same & before));
    __syncwarp();  // all have read before the first lane of a digit writes
    if (d != ~0u && !(same & before)) own[d] += static_cast<uint32_t>(__popc(same));
    __syncwarp();
    if (i >= n) continue;
    store_one(keys, place, key);
    store_one(rows, place, from.row_of(i));
  }
}

/// Sorts rows first to first + n - 1 by key(row), which is below `keys`. Row numbers in the result count from
/// `first`. n: at most kMostSortedRows. The result lies in the stream's scratch.
template <class Key>
SortedRows sort_rows(Stream& s, Key key, uint32_t keys, int64_t first, int64_t n) {
  LT_CHECK(n > 0 && n <= kMostSortedRows && keys > 0,
           "expected a sort of 1 to {} rows by at least 1 key, got {} rows by {} keys", kMostSortedRows, n,
           keys);
  const int bits = std::max(1, static_cast<int>(std::bit_width(keys - 1)));
  const int passes = (bits + kMostDigitBits - 1) / kMostDigitBits, each = (bits + passes - 1) / passes;
  const int64_t tiles = (n + kSortTile - 1) / kSortTile, totals = tiles << each;
  uint32_t* memory = static_cast<uint32_t*>(scratch(s, (4 * n + totals) * 4));
  uint32_t *from = memory, *to = memory + 2 * n, *count = memory + 4 * n;
  const dim3 grid(static_cast<unsigned>(tiles));
  const int64_t shared = int64_t{kSortWarps * 4} << each;
  const auto pass = [&]<class Source>(Source source, Digit digit) {
    launch(s, grid, kSortThreads, shared, digit_totals<Source>, count, source, digit, n);
    launch(s, dim3(1), kScanThreads, kScanThreads / kWarp * 4, sum_totals, count, totals);
    launch(s, grid, kSortThreads, shared, put_in_order<Source>, to, to + n,
           static_cast<const uint32_t*>(count), source, digit, n);
    std::swap(from, to);
  };
  for (int p = 0; p < passes; ++p) {
    if (p == 0)
      pass(RowsInOrder<Key>{key, first}, Digit{0, each});
    else
      pass(RowsOfPass{from, from + n}, Digit{p * each, each});
  }
  return {from, from + n};
}

}  // namespace ltrain::cuda
