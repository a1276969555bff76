#include "kernels/loss/cross_entropy.h"

#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/cuda/hopper_cuda.h"
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/loss/soft_cap_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 512;
/// Logits that a thread loads at once: 32 bytes of fp32, and 16 bytes of a 16-bit gradient. Chunks begin at
/// multiples of kChunk in the full matrix, so that rows of odd length also get 16-byte loads. The ends of a
/// row are handled one by one.
constexpr int kChunk = 8;

/// A running maximum and the sum of exponentials relative to it.
template <class T>
struct TopSum {
  T top = -T(INFINITY), sum = 0;

  /// Adds N values.
  template <int N>
  __device__ __forceinline__ void add(const T* x) {
    T most = x[0];
    for (int j = 1; j < N; ++j) most = Max()(most, x[j]);
    if (most > top) {
      sum *= exp_below(top - most);
      top = most;
    }
    if (top == -T(INFINITY)) return;  // avoids the difference of two infinities
    for (int j = 0; j < N; ++j) sum += exp_below(x[j] - top);
  }
};

/// A row of a matrix and its chunks: columns [begin, end) in chunks of N, the other columns one by one.
template <int N>
struct RowChunks {
  int64_t first, begin, end, columns;
  /// Row `row` of `stride` elements, `columns` of which count.
  __device__ RowChunks(int64_t row, int64_t stride, int64_t columns) : first(row * stride), columns(columns) {
    begin = (N - first % N) % N;
    if (begin > columns) begin = columns;
    end = begin + (columns - begin) / N * N;
  }
  /// Calls f<N>(col) for the chunks, from the last one on with `back`, and f<1>(col) for the other columns,
  /// over the threads of the block.
  template <bool back, class F>
  __device__ __forceinline__ void each(F&& f) const {
    const int64_t step = int64_t{blockDim.x} * N, own = begin + int64_t{threadIdx.x} * N;
    if constexpr (back) {
      if (own < end)
        for (int64_t col = own + (end - 1 - own) / step * step; col >= own; col -= step)
          f.template operator()<N>(col);
    } else {
#pragma unroll 2
      for (int64_t col = own; col < end; col += step) f.template operator()<N>(col);
    }
    if constexpr (N > 1)
      if (const int64_t col = rest(); col >= 0) f.template operator()<1>(col);
  }
  /// The column outside of chunks that this thread has, or -1.
  __device__ __forceinline__ int64_t rest() const {
    const int64_t i = threadIdx.x;
    if (i >= begin + columns - end) return -1;
    return i < begin ? i : end + i - begin;
  }
};

/// TopSum of the threads of the block together.
template <class T>
__device__ TopSum<T> of_block(const TopSum<T>& own, T* scratch) {
  const T all = block_reduce(own.top, Max(), -T(INFINITY), scratch);
  const T scaled = own.top == -T(INFINITY) ? own.sum : own.sum * exp_below(own.top - all);
  TopSum<T> out;
  out.top = all;
  out.sum = block_reduce(scaled, Sum(), T(0), scratch);
  return out;
}

/// TopSum of one row, over the threads of the block; each row is read once. kCap: of the soft-capped row.
template <int N, bool kCap, class T>
__device__ TopSum<T> top_and_sum(const T* logits, const RowChunks<N>& row, T cap, T* scratch) {
  TopSum<T> own;
  row.template each<false>([&]<int M>(int64_t col) {
    T x[M];
    load_values<M>(x, logits, row.first + col);
    if constexpr (kCap)
      for (int j = 0; j < M; ++j) x[j] = capped<true>(x[j], cap);
    own.template add<M>(x);
  });
  return of_block(own, scratch);
}

/// Slope of the soft-cap at x. *value: soft-capped x.
template <bool kCap, class T>
__device__ T through_cap(T x, T cap, T* value) {
  if constexpr (kCap) {
    const SoftCapped<T> s = soft_cap(x, cap);
    *value = s.value;
    return s.slope;
  }
  *value = x;
  return T(1);
}

/// Gradient of a row: exp(logits - top) * factor, minus `scale` at the target.
template <class T>
struct RowGradient {
  T cap, top, factor, scale;
  /// d = the gradient of logits x. The target is the element `target` of them, if it is one.
  template <int M, bool kCap, class A, class I>
  __device__ __forceinline__ void at(A* d, const T* x, I target) const {
    T slope[M], v[M];
    for (int j = 0; j < M; ++j) {
      T value;
      slope[j] = through_cap<kCap>(x[j], cap, &value);
      v[j] = exp_below(value - top) * factor;
    }
    if (target >= 0 && target < M)
      for (int j = 0; j < M; ++j) v[j] -= j == target ? scale : T(0);
    for (int j = 0; j < M; ++j) d[j] = static_cast<A>(kCap ? v[j] * slope[j] : v[j]);
  }
};

/// Writes the gradient of a row; `target`: a column of it, or none. Goes through the row from its end, which
/// the previous pass has left in the caches.
template <int N, bool kCap, class T, class G>
__device__ void row_gradient(G* dlogits, const T* logits, const RowChunks<N>& row, const RowGradient<T>& by,
                             int64_t target) {
  row.template each<true>([&]<int M>(int64_t col) {
    T x[M];
    load_values<M>(x, logits, row.first + col);
    compute_t<G> d[M];
    by.template at<M, kCap>(d, x, target - col);
    store_values<M>(dlogits, row.first + col, d);
  });
}

template <int N, class G>
__device__ void zero_columns(G* dlogits, const RowChunks<N>& row) {
  row.template each<false>([&]<int M>(int64_t col) {
    const compute_t<G> zeros[M] = {};
    store_values<M>(dlogits, row.first + col, zeros);
  });
}

/// Losses of rows: (rows), and with z_coeff above 0 as many of the z-loss behind them.
struct RowLosses {
  double* to;
  int64_t rows;
  double z_coeff;
  __device__ __forceinline__ void put(int64_t row, double loss, double z_loss) const {
    store_one(to, row, loss);
    if (z_coeff > 0) store_one(to, rows + row, z_loss);
  }
  /// Returns the factor of a row's gradient. The thread that `leads` puts the row's loss.
  template <class T>
  __device__ __forceinline__ T finish(int64_t row, const TopSum<T>& t, T at_target, double scale,
                                      bool leads) const {
    double log_z = 0, slope = 1;
    // Logarithms in double are for one thread, but where the z-loss asks for them.
    if (leads || z_coeff > 0) log_z = log(static_cast<double>(t.sum)) + static_cast<double>(t.top);
    if (z_coeff > 0) slope += 2 * z_coeff * log_z;
    if (leads) put(row, log_z - static_cast<double>(at_target), z_coeff * log_z * log_z);
    return T(scale * slope) / t.sum;
  }
};

/// One block for each row.
template <int N, class T, class G, bool kCap>
__global__ void __launch_bounds__(kThreads)
    cross_entropy(RowLosses losses, G* dlogits, const T* logits, const int32_t* targets, int64_t vocab, T cap,
                  GradientScale by) {
  const RowChunks<N> row(blockIdx.x, vocab, vocab);
  const int32_t target = load_one(targets, blockIdx.x);
  if (target < 0) {
    if (dlogits) zero_columns(dlogits, row);
    if (threadIdx.x == 0) losses.put(blockIdx.x, 0, 0);
    return;
  }
  const T at_target = capped<kCap>(load_one(logits, row.first + target), cap);
  // The barriers in top_and_sum separate this read from the writes below.
  const TopSum<T> t = top_and_sum<N, kCap>(logits, row, cap, shared_memory<T>());
  const double scale = dlogits ? by.get(blockIdx.x) : 0;
  const T factor = losses.finish(blockIdx.x, t, at_target, scale, threadIdx.x == 0);
  if (dlogits)
    row_gradient<N, kCap>(dlogits, logits, row, RowGradient<T>{cap, t.top, factor, T(scale)}, target);
}

// Rows of many fp32 logits, which a block keeps in shared memory, as far as they fit, from their sum to their
// gradient. A slot has a chunk of each thread. A warp copies and reads its own part of a slot, so that slots
// need no barrier, and copies the next row's as soon as it has read it. Of a longer row the first slots are
// kept, and the others pass through a ring, which ends with the row's last slots.

constexpr int kSlot = kThreads * kChunk;  ///< logits of a slot
constexpr int kRing = 5;                  ///< slots of the ring
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
__global__ void __launch_bounds__(kThreads, 1) cross_entropy_kept(const __grid_constant__ KeptRows<G> a) {
  float* const scratch = shared_memory<float>();
  NextRow* const told = reinterpret_cast<NextRow*>(scratch + kWarp);
  const Slots slots(scratch + kBeforeSlots / 4, a.slots, a.room);
  const int rows = static_cast<int>(a.losses.rows), own = threadIdx.x * kChunk;
  const bool leads = threadIdx.x == kThreads - kWarp;
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

template <int N, class T, bool kCap>
__global__ void __launch_bounds__(kThreads)
    stats(T* out, const T* logits, const int32_t* targets, int64_t vocab, T cap, VocabColumns part) {
  const RowChunks<N> row(blockIdx.x, vocab, part.columns);
  const TopSum<T> t = top_and_sum<N, kCap>(logits, row, cap, shared_memory<T>());
  if (threadIdx.x != 0) return;
  const int64_t target = load_one(targets, blockIdx.x) - part.first;
  T* own = out + 3 * int64_t{blockIdx.x};
  store_one(own, 0, t.top);
  store_one(own, 1, t.sum);
  store_one(
      own, 2,
      target >= 0 && target < part.columns ? capped<kCap>(load_one(logits, row.first + target), cap) : T(0));
}

template <int N, class T, class G, bool kCap>
__global__ void __launch_bounds__(kThreads)
    sharded(double* row_loss, G* dlogits, const T* logits, const int32_t* targets, const T* stats, int ranks,
            int64_t vocab, T cap, VocabColumns part, GradientScale by, double z_coeff) {
  const int64_t row = blockIdx.x, rows = gridDim.x;
  const int32_t token = load_one(targets, row);
  double top = -INFINITY, sum = 0, at_target = 0;
  for (int r = 0; r < ranks; ++r) {
    const double t = stats[(r * rows + row) * 3];
    top = t > top ? t : top;
  }
  for (int r = 0; r < ranks; ++r) {
    const T* of = stats + (r * rows + row) * 3;
    sum += of[1] * exp(static_cast<double>(of[0]) - top);
    at_target += of[2];
  }
  double log_z = 0, slope = 1;
  if (threadIdx.x == 0 || z_coeff > 0) log_z = log(sum) + top;
  if (z_coeff > 0) slope += 2 * z_coeff * log_z;
  if (threadIdx.x == 0) {
    store_one(row_loss, row, token >= 0 ? log_z - at_target : 0);
    if (z_coeff > 0) store_one(row_loss, rows + row, token >= 0 ? z_coeff * log_z * log_z : 0);
  }
  if (!dlogits) return;
  if (token < 0) return zero_columns(dlogits, RowChunks<N>(row, vocab, vocab));
  const double scale = by.get(row);
  row_gradient<N, kCap>(
      dlogits, logits, RowChunks<N>(row, vocab, part.columns),
      RowGradient<T>{cap, static_cast<T>(top), static_cast<T>(scale * slope / sum), static_cast<T>(scale)},
      token - part.first);
  for (int64_t v = part.columns + threadIdx.x; v < vocab; v += blockDim.x)  // padding
    put(dlogits, row * vocab + v, compute_t<G>(0));
}

template <class T, int P>
__global__ void cap_all(T* x, int64_t n, T cap) {
  over_packs<P>(n, [&]<int N>(int64_t i) {
    T v[N];
    load_values<N>(v, x, i);
    for (int j = 0; j < N; ++j) v[j] = capped<true>(v[j], cap);
    store_values<N>(x, i, v);
  });
}

/// loss += sum of the rows' losses: consecutive rows in order, then threads by one tree. One block.
__global__ void add_rows(double* loss, const double* row_loss, int64_t rows) {
  const int64_t begin = rows * threadIdx.x / blockDim.x, end = rows * (threadIdx.x + 1) / blockDim.x;
  double sum = 0;
  for (int64_t row = begin; row < end; ++row) sum += load_one(row_loss, row);
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) *loss += sum;
}

void add_losses(Stream& s, double* loss, const double* row_loss, int64_t rows) {
  launch(s, dim3(1), kThreads, kWarp * 8, add_rows, loss, row_loss, rows);
}

/// Calls f with the types of the logits and of their gradient.
template <class F>
void with_types(DType logits, DType grad, F&& f) {
  if (logits == DType::f64) {
    f.template operator()<double, double>();
  } else if (is_half(grad)) {
    dispatch_half(grad, [&]<class G>() { f.template operator()<float, G>(); });
  } else {
    f.template operator()<float, float>();
  }
}

/// Calls f<N, kCap>() for logits of type T. For fp64, N is one pack, to limit registers.
template <class T, class F>
void with_chunks(double soft_cap, std::initializer_list<const void*> pointers, F&& f) {
  with_cap(soft_cap, [&]<bool kCap>() {
    if (aligned(pointers)) {
      f.template operator()<sizeof(T) == 8 ? kPackOf<T> : kChunk, kCap>();
    } else {
      f.template operator()<1, kCap>();
    }
  });
}

/// Room for the losses of rows, and for their z-losses behind them.
double* row_losses(Stream& s, int64_t rows, double z_coeff) {
  return static_cast<double*>(scratch(s, (z_coeff > 0 ? 2 : 1) * rows * 8));
}

/// cross_entropy_kept, or false, without work, where rows are short or a block has little shared memory.
template <class G>
bool launch_kept(Stream& s, const RowLosses& losses, G* dlogits, const float* logits, const int32_t* targets,
                 int64_t vocab, double soft_cap, const GradientScale& by) {
  const int64_t slots = (vocab / kChunk + kThreads - 1) / kThreads, room = slots_in(most_shared());
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
    launch(s, dim3(static_cast<unsigned>(std::min(losses.rows, multiprocessors()))), kThreads,
           kBeforeSlots + std::min(slots, room) * kSlot * 4, cross_entropy_kept<G, kCap>, a);
  });
  return true;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void cross_entropy_stats_cuda(Stream& s, DType t, void* stats, const void* logits, const int32_t* targets,
                              int64_t rows, int64_t vocab, VocabColumns part, double soft_cap) {
  const auto run = [&]<class T>() {
    with_chunks<T>(soft_cap, {logits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, kWarp * sizeof(T), cuda::stats<N, T, kCap>,
             static_cast<T*>(stats), static_cast<const T*>(logits), targets, vocab, static_cast<T>(soft_cap),
             part);
    });
  };
  dispatch_wide(t, run);
}

void cross_entropy_sharded_cuda(Stream& s, DType logits_type, DType grad_type, double* loss, void* dlogits,
                                const void* logits, const int32_t* targets, const void* stats, int ranks,
                                int64_t rows, int64_t vocab, VocabColumns part, GradientScale scale,
                                double soft_cap, double z_coeff, double* z_loss) {
  double* row_loss = row_losses(s, rows, z_coeff);
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    with_chunks<T>(soft_cap, {logits, dlogits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, 0, cuda::sharded<N, T, G, kCap>, row_loss,
             static_cast<G*>(dlogits), static_cast<const T*>(logits), targets, static_cast<const T*>(stats),
             ranks, vocab, static_cast<T>(soft_cap), part, scale, z_coeff);
    });
  });
  add_losses(s, loss, row_loss, rows);
  if (z_coeff > 0) add_losses(s, z_loss, row_loss + rows, rows);
}

void cross_entropy_cuda(Stream& s, DType logits_type, DType grad_type, double* loss, void* dlogits,
                        const void* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                        GradientScale scale, double soft_cap, double z_coeff, double* z_loss) {
  const RowLosses losses{row_losses(s, rows, z_coeff), rows, z_coeff};
  with_types(logits_type, grad_type, [&]<class T, class G>() {
    const T* from = static_cast<const T*>(logits);
    G* to = static_cast<G*>(dlogits);
    if constexpr (std::is_same_v<T, float>)
      if (dlogits && launch_kept(s, losses, to, from, targets, vocab, soft_cap, scale)) return;
    with_chunks<T>(soft_cap, {logits, dlogits}, [&]<int N, bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kThreads, kWarp * sizeof(T),
             cuda::cross_entropy<N, T, G, kCap>, losses, to, from, targets, vocab, static_cast<T>(soft_cap),
             scale);
    });
  });
  add_losses(s, loss, losses.to, rows);
  if (z_coeff > 0) add_losses(s, z_loss, losses.to + rows, rows);
}

void soft_cap_logits_cuda(Stream& s, DType t, void* logits, int64_t n, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_alignment<T>({logits}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::cap_all<T, N>, static_cast<T*>(logits), n,
             static_cast<T>(soft_cap));
    });
  });
}

}  // namespace ltrain
