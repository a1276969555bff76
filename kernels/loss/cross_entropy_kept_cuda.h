// Rows of many fp32 logits, which a block keeps in shared memory, as far as they fit, from their sum to their
// gradient. A slot has a chunk of each thread. A warp copies and reads its own part of a slot, so that slots
// need no barrier, and copies the next row's as soon as it has read it. Of a longer row the first slots are
// kept, and the others pass through a ring, which ends with the row's last slots.
#pragma once
#include "kernels/cuda/hopper_cuda.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/loss/cross_entropy_rows_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kSlot = kLogitThreads * kChunk;  ///< logits of a slot
constexpr int kRing = 5;                       ///< slots of the ring
/// Fewest slots that are kept. Shorter rows are read twice, the second time from the caches.
constexpr int kLeastSlots = 8;

/// The next row of a block, as its leading thread tells the others.
struct NextRow {
  int row;
  int32_t target;
};
/// Shared memory before the slots: scratch of reductions, two NextRow.
constexpr int64_t kBeforeSlots = 256;
static_assert(kBeforeSlots >= kWarp * 4 + 2 * static_cast<int64_t>(sizeof(NextRow)));
/// Slots that fit the shared memory of a block.
constexpr int64_t slots_in(int64_t shared) { return (shared - kBeforeSlots) / (kSlot * 4); }
static_assert(kKeptLogits == slots_in(kMostShared) * kSlot);  // the plan's price

/// A row as a lane copies it: two pieces of 16 bytes of a slot, kPiece logits apart.
struct CopiedRow {
  static constexpr int kPiece = kWarp * 4;
  const float* from;  ///< the lane's first piece of the first slot
  int width;          ///< logits from there to the end of the row's chunks
  __device__ CopiedRow(const float* logits, const RowChunks<kChunk>& row) {
    const int lane = threadIdx.x % kWarp, offset = (threadIdx.x - lane) * kChunk + lane * 4;
    from = logits + row.first + row.begin + offset;
    width = static_cast<int>(row.end - row.begin) - offset;
  }
};

/// Slots of a warp in shared memory.
struct Slots {
  int count, kept;          ///< slots of a row, and those before the ring
  float* to;                ///< place of the lane's first copy
  const float *low, *high;  ///< the halves of the thread's chunk in the first slot
  __device__ Slots(float* first, int count, int room)
      : count(count), kept(count <= room ? count : room - kRing) {
    const int lane = threadIdx.x % kWarp;
    float* const own = first + (threadIdx.x - lane) * kChunk;
    to = own + place(lane), low = own + place(2 * lane), high = own + place(2 * lane + 1);
  }
  /// Place of the piece `i` of a warp's part of a slot: lanes that read at the same time meet all banks.
  static __device__ __forceinline__ int place(int i) { return (i ^ (i >> 3 & 1)) * 4; }
  /// Starts the copy of slot k of a row into `slot`, once all lanes have read what is there.
  __device__ __forceinline__ void copy(const CopiedRow& row, int k, int slot) const {
    constexpr int kPiece = CopiedRow::kPiece;
    __syncwarp();
    const int at = k * kSlot;
    if (at < row.width) copy_async_16(to + slot * kSlot, row.from + at, true);
    if (at + kPiece < row.width) copy_async_16(to + slot * kSlot + kPiece, row.from + at + kPiece, true);
  }
  __device__ __forceinline__ void read(float* x, int slot) const {
    const auto half = [&](float* y, const float* from) {
      const Pack<float, 4> p = *reinterpret_cast<const Pack<float, 4>*>(from + slot * kSlot);
      for (int j = 0; j < 4; ++j) y[j] = p.v[j];
    };
    half(x, low), half(x + 4, high);
  }
  /// Starts all copies of a row that have room.
  __device__ void begin(const CopiedRow& row) const {
#pragma unroll 1
    for (int k = kept; k < count && k < kept + kRing; ++k) copy(row, k, k), commit_copies();
#pragma unroll 1
    for (int k = 0; k < kept; ++k) copy(row, k, k), commit_copies();
  }
};

/// store_values of what is not read again soon: the caches give it up first.
template <int N, class G>
__device__ __forceinline__ void store_passing(G* to, int64_t i, const compute_t<G>* v) {
#ifdef __CUDA_ARCH__
  if constexpr (N * sizeof(G) % 16 == 0) {
    constexpr int P = kPackOf<G>;
    for (int k = 0; k < N; k += P) {
      const Pack<G, P> p = rounded<G, P>(v + k);
      uint4 words;
      memcpy(&words, &p, 16);
      __stcs(reinterpret_cast<uint4*>(to + i + k), words);
    }
    return;
  }
#endif
  store_values<N>(to, i, v);
}

/// TopSum of this thread's chunks of a row; `width`: logits from the thread's first chunk on.
template <bool kCap>
__device__ TopSum<float> slots_sum(const Slots& slots, const CopiedRow& row, int width, float cap) {
  TopSum<float> own;
  const auto add = [&](int k, int slot) {
    __syncwarp();  // all lanes have waited for their copies
    if (k * kSlot >= width) return;
    float x[kChunk];
    slots.read(x, slot);
    for (int j = 0; j < kChunk; ++j) x[j] = capped<kCap>(x[j], cap);
    own.template add<kChunk>(x);
  };
  for (int k = 0; k < slots.kept; ++k) {
    wait_for_older_copies<kLeastSlots - 1>();  // at least as many were started after this slot's
    add(k, k);
    commit_copies();
  }
  for (int k = slots.kept, slot = k; k < slots.count; ++k) {
    wait_for_older_copies<kRing - 1>();
    add(k, slot);
    if (k + kRing < slots.count) slots.copy(row, k + kRing, slot);
    commit_copies();
    if (++slot == slots.kept + kRing) slot = slots.kept;
  }
  return own;
}

/// Writes the gradient of a row's chunks, those of the ring first, and starts the copies of the next row.
/// `to`: of the thread's first chunk, `width` as in slots_sum; `target`: logit of the target from there.
template <bool kCap, class G>
__device__ void slots_gradient(const Slots& slots, G* to, const CopiedRow& row, int width,
                               const RowGradient<float>& by, int target, const CopiedRow& next,
                               bool copies_next) {
  const auto gradient = [&](int k, int slot, auto&& copy) {
    const int at = k * kSlot;
    float x[kChunk];
    slots.read(x, slot);  // beyond the width what no one uses
    copy();
    commit_copies();
    if (at >= width) return;
    compute_t<G> d[kChunk];
    by.template at<kChunk, kCap>(d, x, target - at);
    store_passing<kChunk>(to, at, d);
  };
  for (int k = slots.count - 1, slot = slots.kept + (k - slots.kept) % kRing; k >= slots.kept; --k) {
    wait_for_older_copies<kRing - 1>();
    __syncwarp();
    const bool own = k - kRing >= slots.kept;
    CopiedRow from = row;
    if (!own) from = next;
    gradient(k, slot, [&] {
      if (own || copies_next) slots.copy(from, own ? k - kRing : k, slot);
    });
    if (--slot < slots.kept) slot += kRing;
  }
  for (int k = 0; k < slots.kept; ++k)
    gradient(k, k, [&] {
      if (copies_next) slots.copy(next, k, k);
    });
}

template <class G>
struct KeptRows {
  RowLosses losses;
  G* dlogits;
  const float* logits;
  const int32_t* targets;
  int64_t vocab;
  float cap;
  GradientScale by;
  int slots, room;  ///< slots of a row, and of shared memory
  unsigned* counter;
};

/// Each block takes one row after another. A thread of the last warp, which may have fewer chunks, leads it.
template <class G, bool kCap>
__global__ void __launch_bounds__(kLogitThreads, 1)
    cross_entropy_kept(const __grid_constant__ KeptRows<G> a) {
  float* const scratch = shared_memory<float>();
  NextRow* const told = reinterpret_cast<NextRow*>(scratch + kWarp);
  const Slots slots(scratch + kBeforeSlots / 4, a.slots, a.room);
  const int rows = static_cast<int>(a.losses.rows), own = threadIdx.x * kChunk;
  const bool leads = threadIdx.x == kLogitThreads - kWarp;
  const auto row_of = [&](const NextRow& next) { return RowChunks<kChunk>(next.row, a.vocab, a.vocab); };
  NextRow now{static_cast<int>(blockIdx.x), load_one(a.targets, blockIdx.x)};
  if (now.target >= 0) slots.begin(CopiedRow(a.logits, row_of(now)));
  int following = leads ? next_piece(a.counter, rows) : rows;  // asked for a row ahead
  for (int turn = 0; now.row < rows; turn ^= 1) {
    const RowChunks<kChunk> row = row_of(now);
    const CopiedRow copied(a.logits, row);
    const int width = static_cast<int>(row.end - row.begin) - own;
    const bool counts = now.target >= 0;
    NextRow next{following, -1};
    if (following < rows) {
      next.target = load_one(a.targets, following);
      following = next_piece(a.counter, rows);
    }
    TopSum<float> t;
    const int64_t rest_at = counts ? row.rest() : -1;
    float rest = 0, at_target = 0;  // logits outside of chunks, and of the target
    double scale = 0;
    if (counts) {
      scale = a.by.get(now.row);
      if (leads) at_target = load_one(a.logits, row.first + now.target);
      if (rest_at >= 0) rest = load_one(a.logits, row.first + rest_at);
      t = slots_sum<kCap>(slots, copied, width, a.cap);
      const float x = capped<kCap>(rest, a.cap);
      if (rest_at >= 0) t.template add<1>(&x);
    }
    if (leads) told[turn] = next;
    t = of_block(t, scratch);
    next = told[turn];
    const CopiedRow next_copied(a.logits, row_of(next));
    if (counts) {
      const float factor = a.losses.finish(now.row, t, capped<kCap>(at_target, a.cap), scale, leads);
      const RowGradient<float> by{a.cap, t.top, factor, static_cast<float>(scale)};
      slots_gradient<kCap>(slots, a.dlogits + row.first + row.begin + own, copied, width, by,
                           static_cast<int>(now.target - row.begin) - own, next_copied, next.target >= 0);
      if (rest_at >= 0) {
        compute_t<G> d[1];
        by.template at<1, kCap>(d, &rest, now.target - rest_at);
        store_values<1>(a.dlogits, row.first + rest_at, d);
      }
    } else {
      zero_columns(a.dlogits, row);
      if (leads) a.losses.put(now.row, 0, 0);
      if (next.target >= 0) slots.begin(next_copied);
    }
    now = next;
  }
  wait_for_copies();
}

/// cross_entropy_kept, or false, without work, where rows are short or a block has little shared memory.
template <class G>
bool launch_kept(Stream& s, const RowLosses& losses, G* dlogits, const float* logits, const int32_t* targets,
                 int64_t vocab, double soft_cap, const GradientScale& by) {
  const int64_t slots = (vocab / kChunk + kLogitThreads - 1) / kLogitThreads, room = slots_in(most_shared());
  const bool fits = slots <= room || kLeastSlots + kRing <= room;
  if (losses.rows == 0 || slots < kLeastSlots || !fits || !aligned({logits, dlogits})) return false;
  const KeptRows<G> a{.losses = losses,
                      .dlogits = dlogits,
                      .logits = logits,
                      .targets = targets,
                      .vocab = vocab,
                      .cap = static_cast<float>(soft_cap),
                      .by = by,
                      .slots = static_cast<int>(slots),
                      .room = static_cast<int>(room),
                      .counter = work_counter(s)};
  with_cap(soft_cap, [&]<bool kCap>() {
    launch(s, dim3(static_cast<unsigned>(std::min(losses.rows, multiprocessors()))), kLogitThreads,
           kBeforeSlots + std::min(slots, room) * kSlot * 4, cross_entropy_kept<G, kCap>, a);
  });
  return true;
}

}  // namespace
}  // namespace cuda
}  // namespace ltrain
