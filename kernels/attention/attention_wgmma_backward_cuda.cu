// Attention backward on Hopper, deterministic. Like attention_mma_backward_cuda.cu it has one kernel that
// owns keys and one that owns queries; both recompute the probabilities, and the kernel for keys computes
// transposed scores. All left operands of the sums are accumulators of the previous matmuls, so that only
// tiles go through shared memory. Exponentials overlap with a matmul. In the kernel for queries it is dQ of
// the previous tile. The kernel for keys has no registers left for that: its exponentials overlap with dO
// V^T, and the scores of the next queries start beside the dK matmul.
// Blocks of the kernel for queries are persistent, as in the forward; the other has no registers for that.
#include "kernels/attention/attention_wgmma_cuda.h"
#include "kernels/cuda/persistent_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// For each tile of kN queries: kN values of log2(e) lse, then kN values of delta, the sum over channels of
/// dout * out. Infinity, for a query that sees nothing or lies beyond the tile, makes its probabilities zero.
/// Grid: (blocks of rows of the tiles of a head, heads of samples from `first_unit` on, in the order of lse).
template <int kN, int kDim, class T>
__global__ void __launch_bounds__(kMmaThreads)
    attention_statistics(float* to, const T* dout, const T* out, const float* lse, int first_unit,
                         AttentionArgs a) {
  using Dot = RowDot<kDim>;
  static_assert(kN % Dot::kRows == 0);
  const Tiles tiles(a.q_at, kN);
  const int i = static_cast<int>(blockIdx.x) * Dot::kRows + Dot::row(), col = i % kN;
  const int heads = static_cast<int>(a.heads), unit = first_unit + static_cast<int>(blockIdx.y);
  const Tile tile = tiles[i / kN];
  const bool there = col < tile.count;
  const int64_t row = tile.row + col, at = (unit / heads * a.q_at.rows + row) * heads + unit % heads;
  const float sum = Dot::of(dout, out, at * kDim, kDim, there);
  if (!Dot::first()) return;
  const float log_sum = there ? lse[unit * a.q_at.rows + row] : -INFINITY;
  float* const of_tile = to + (blockIdx.y * tiles.total + i / kN) * 2 * kN;
  of_tile[col] = log_sum == -INFINITY ? INFINITY : log_sum * kToLog2;
  of_tile[kN + col] = sum;
}

/// Buffers of keys in the kernel for queries. A tile's keys are read until its step ends, and the matmuls of
/// the next tile with its keys start before that. With two buffers no tile could be copied ahead.
constexpr int kKeyStages = 3;

/// True if registers hold the own rows of a block (OwnRows), but for the values, which do not fit.
template <int kDim>
constexpr bool kHoldsOwn = kDim == 64;

/// dq of a tile of queries: sum over keys. `statistics`: in tiles of kStatistics queries.
template <class C, int kStatistics, class T>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_wgmma_backward_q(const __grid_constant__ TensorMap q_map,
                               const __grid_constant__ TensorMap g_map,
                               const __grid_constant__ TensorMap k_map,
                               const __grid_constant__ TensorMap v_map, AttentionSink dq,
                               const float* statistics, int first_unit, WorkList list, unsigned* counter,
                               AttentionArgs a) {
#ifdef LT_HOPPER
  constexpr int kDim = C::kDim, kN = C::kN, kTile = kN * kDim;
  const int heads = static_cast<int>(a.heads);
  T* const qs = shared_boxes<T>();
  T *const gs = qs + C::kRows * kDim, *const ks = gs + C::kRows * kDim, *const vs = ks + kKeyStages * kTile;
  Mbarrier* const own_there = reinterpret_cast<Mbarrier*>(vs + kStages * kTile);
  Mbarrier *const own_free = own_there + 1, *const k_there = own_free + 1;
  Mbarrier *const v_there = k_there + kKeyStages, *const k_free = v_there + kStages;
  Mbarrier* const v_free = k_free + kKeyStages;
  Step* const steps = reinterpret_cast<Step*>(v_free + kStages);
  int* const pieces = reinterpret_cast<int*>(steps + kKeyStages);  // pieces whose first step is in the slot
  // Tiles are numbered from the heaviest: late queries see most keys.
  const auto queries_of = [&](const WorkList::Work& work) -> ShortTile {
    return Tiles(a.q_at, C::kRows)[list.tiles - 1 - work.tile];
  };

  if (threadIdx.x == 0) {
    mbarrier_init(own_there, 1), mbarrier_init(own_free, 4 * C::kGroups);
    for (int i = 0; i < kKeyStages; ++i)
      mbarrier_init(k_there + i, 1), mbarrier_init(k_free + i, 4 * C::kGroups);
    for (int i = 0; i < kStages; ++i)
      mbarrier_init(v_there + i, 1), mbarrier_init(v_free + i, 4 * C::kGroups);
    mbarrier_init_done();
  }
  __syncthreads();

  Ring<1> own;
  Ring<kKeyStages> k;
  Ring<kStages> v;
  if (threadIdx.x < kWarpgroup) {
    fewer_registers<C::kFew>();
    if (threadIdx.x == 0) {
      for (int piece = static_cast<int>(blockIdx.x);;) {
        mbarrier_wait(k_free + k.stage, k.parity ^ 1);
        pieces[k.stage] = piece;
        if (piece >= list.pieces()) break;
        const WorkList::Work work = list[piece];
        piece = next_piece(counter, list.pieces());
        const int unit = first_unit + work.unit, head = unit % heads, sample = unit / heads;
        const int kv_head = head / (heads / static_cast<int>(a.kv_heads));
        const ShortTile qt = queries_of(work);
        const Mask mask(a, sample);
        const Tiles k_tiles(a.k_at, kN);
        const TileRange seen = keys_seen(k_tiles, mask, qt);
        const int highest = static_cast<int>(mask.lowest(qt.at + qt.count - 1));
        if (seen.total == 0) steps[k.stage] = Step::nothing(), mbarrier_arrive(k_there + k.stage), k.next();
        for (int n = 0; n < seen.total; ++n, k.next(), v.next()) {
          const ShortTile kt = k_tiles[seen[n]];
          mbarrier_wait(k_free + k.stage, k.parity ^ 1);
          steps[k.stage] = Step::keys(kt, kN, qt, highest, n + 1 < seen.total);
          mbarrier_expect(k_there + k.stage, C::kTileBytes);
          load_tile<kDim, kN>(ks + k.stage * kTile, k_map, k_there + k.stage, a.k_at, kt, sample, kv_head);
          if (n == 0) {
            mbarrier_wait(own_free, own.parity ^ 1);
            mbarrier_expect(own_there, 2 * C::kOwnBytes);
            load_tile<kDim, C::kRows>(qs, q_map, own_there, a.q_at, qt, sample, head);
            load_tile<kDim, C::kRows>(gs, g_map, own_there, a.q_at, qt, sample, head);
            own.next();
          }
          mbarrier_wait(v_free + v.stage, v.parity ^ 1);
          mbarrier_expect(v_there + v.stage, C::kTileBytes);
          load_tile<kDim, kN>(vs + v.stage * kTile, v_map, v_there + v.stage, a.k_at, kt, sample, kv_head);
        }
      }
      mbarrier_arrive(k_there + k.stage);  // end of the list
    }
  } else {
    more_registers<C::kMany>();
    const int group = warp_index() / 4 - 1, lane = threadIdx.x % kWarp;
    const int first = warp_index() * 16 - 64;  // first of the warp's queries
    const float scale = score_scale<float>(a), to_log2 = scale * kToLog2;
    const Tiles of_statistics(a.q_at, kStatistics);
    const auto done_with = [&](Mbarrier* free) {
      if (lane == 0) mbarrier_arrive(free);
    };

    for (;; k.next()) {
      mbarrier_wait(k_there + k.stage, k.parity);
      const int piece = uniform(pieces[k.stage]);
      if (piece >= list.pieces()) break;
      Step step = read_step(steps + k.stage);
      const WorkList::Work work = list[piece];
      const int unit = first_unit + work.unit, head = unit % heads, sample = unit / heads;
      const ShortTile qt = queries_of(work);
      const Mask mask(a, sample);
      float acc[kDim / 2], s[kN / 2], ds[kN / 2], row_lse[2], row_delta[2];
      uint32_t weights[kN / 16][4];
      OwnRows<C, T, kHoldsOwn<kDim>> own_q{qs}, own_g{gs};
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) acc[i] = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A tile begins at the begin of a tile of statistics, and rows beyond its run have infinities.
        const int64_t row = qt.row + std::min(first + 8 * half + lane / 4, qt.count - 1);
        const int64_t in_run = row < a.q_at.split ? row : row - a.q_at.split;
        const int64_t tile = (row < a.q_at.split ? 0 : of_statistics.in_first) + in_run / kStatistics;
        const float* from = statistics + (work.unit * of_statistics.total + tile) * 2 * kStatistics;
        row_lse[half] = from[in_run % kStatistics];
        row_delta[half] = from[kStatistics + in_run % kStatistics];
      }
      // Turns scores into probabilities.
      const auto soften = [&](const Step& kt) {
        if (kt.hidden()) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = first + 8 * half + lane / 4;
            const int begin = row < qt.count ? static_cast<int>(mask.lowest(qt.at + row)) - kt.at : 0;
            const int end = row < qt.count ? std::min(qt.at + row - kt.at + 1, kt.count()) : 0;
            // Columns are counted from `begin` on, so that one comparison each is enough.
            const unsigned seen = std::max(end - begin, 0), from = lane % 4 * 2 - begin;
#pragma unroll
            for (int c = 0; c < kN / 8; ++c)
#pragma unroll
              for (int i = 4 * c + 2 * half; i < 4 * c + 2 * half + 2; ++i)
                if (from + 8 * c + i % 2 >= seen) s[i] = -INFINITY;
          }
        }
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) s[i] = exp2_fast(s[i] * to_log2 - row_lse[i % 4 / 2]);
      };
      const auto differentiate = [&] {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) ds[i] = s[i] * (ds[i] - row_delta[i % 4 / 2]);
      };
      // Starts the scores of a tile in one wgmma group, and dO V^T for the gradients of its probabilities in
      // the next group.
      const auto begin_tile = [&] {
        in_flight(s), in_flight(ds), in_flight(acc);
        wgmma_fence();
        own_q.begin(s, 64 * group, ks + k.stage * kTile);
        wgmma_commit();
        mbarrier_wait(v_there + v.stage, v.parity);
        wgmma_fence();
        own_g.begin(ds, 64 * group, vs + v.stage * kTile);
        wgmma_commit();
      };
      // After the tile's gradients of probabilities.
      const auto done_with_values = [&] {
        done_with(v_free + v.stage);
        if (!kHoldsOwn<kDim> && !step.more()) done_with(own_free);
      };

      if (step.count() == 0) done_with(k_free + k.stage);
      if (step.count() > 0) {
        mbarrier_wait(own_there, own.parity);
        own_q.take(first), own_g.take(first);
        if (kHoldsOwn<kDim>) done_with(own_free);
        begin_tile();
        wgmma_wait<1>();
        in_flight(s);
        soften(step);
        wgmma_wait<0>();
        in_flight(ds);
        done_with_values();
        differentiate();
        as_left<T, kN>(weights, ds);
        while (step.more()) {
          const int before = k.stage;
          k.next(), v.next();
          mbarrier_wait(k_there + k.stage, k.parity);
          step = read_step(steps + k.stage);
          begin_tile();
          wgmma_fence();
          begin_sums<T, kDim, kN>(acc, weights, ks + before * kTile);
          wgmma_commit();
          wgmma_wait<2>();
          in_flight(s);
          soften(step);
          wgmma_wait_behind<1>(s[kN / 2 - 1] + s[kN / 2 - 2], v_there + v.stage, v.parity);
          in_flight(ds);
          done_with_values();
          differentiate();
          wgmma_wait<0>();
          in_flight(acc);
          done_with(k_free + before);
          as_left<T, kN>(weights, ds);
        }
        in_flight(acc);
        wgmma_fence();
        begin_sums<T, kDim, kN>(acc, weights, ks + k.stage * kTile);
        wgmma_commit();
        wgmma_wait<0>();
        in_flight(acc);
        done_with(k_free + k.stage);
        v.next(), own.next();
      }

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + 8 * half + lane / 4;
        if (row >= qt.count) continue;
        give_row<T>(dq, sample * a.q_at.rows + qt.row + row, head * kDim + lane % 4 * 2, acc, half, scale);
      }
    }
  }
#endif
}

/// dk and dv of a tile of keys: sums over the queries of all heads that share it.
template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_wgmma_backward_kv(const __grid_constant__ TensorMap q_map,
                                const __grid_constant__ TensorMap g_map,
                                const __grid_constant__ TensorMap k_map,
                                const __grid_constant__ TensorMap v_map, AttentionSink dk, AttentionSink dv,
                                const float* statistics, int first_unit, WorkList list, AttentionArgs a) {
#ifdef LT_HOPPER
  constexpr int kDim = C::kDim, kN = C::kN, kTile = kN * kDim;
  const int kv_heads = static_cast<int>(a.kv_heads), heads = static_cast<int>(a.heads) / kv_heads;
  const WorkList::Work work = list[blockIdx.x];
  const int unit = first_unit + work.unit;  // a key-value head of a sample
  const int kv_head = unit % kv_heads, sample = unit / kv_heads;
  T* const ks = shared_boxes<T>();
  T *const vs = ks + C::kRows * kDim, *const qs = vs + C::kRows * kDim, *const gs = qs + kStages * kTile;
  float* const columns = reinterpret_cast<float*>(gs + kStages * kTile);
  Mbarrier* const own_there = reinterpret_cast<Mbarrier*>(columns + kStages * 2 * kN);
  Mbarrier *const q_there = own_there + 1, *const g_there = q_there + kStages;
  Mbarrier *const q_free = g_there + kStages, *const g_free = q_free + kStages;
  Step* const steps = reinterpret_cast<Step*>(g_free + kStages);
  const ShortTile kt = Tiles(a.k_at, C::kRows)[work.tile];  // most queries see early keys
  const Mask mask(a, sample);

  if (threadIdx.x == 0) {
    mbarrier_init(own_there, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(q_there + i, 1), mbarrier_init(g_there + i, 1);
      mbarrier_init(q_free + i, 4 * C::kGroups), mbarrier_init(g_free + i, 4 * C::kGroups);
    }
    mbarrier_init_done();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    fewer_registers<C::kFew>();
    if (threadIdx.x < kWarp) {
      if (threadIdx.x == 0) {
        mbarrier_expect(own_there, 2 * C::kOwnBytes);
        load_tile<kDim, C::kRows>(ks, k_map, own_there, a.k_at, kt, sample, kv_head);
        load_tile<kDim, C::kRows>(vs, v_map, own_there, a.k_at, kt, sample, kv_head);
      }
      const Tiles q_tiles(a.q_at, kN);
      const TileRange seen = queries_that_see(q_tiles, mask, kt, WarpSearch());
      // tiles of the first head that shares these keys, then of the second, ...
      const int steps_of_all = heads * seen.total;
      if (threadIdx.x == 0) {
        if (steps_of_all == 0) steps[0] = Step::nothing(), mbarrier_arrive(q_there);
        for (int n = 0, h = 0, j = 0; n < steps_of_all; ++n) {
          const int stage = n % kStages, head = kv_head * heads + h, ended = (n / kStages + 1) % 2;
          const ShortTile qt = q_tiles[seen[j]];
          const float* const from =
              statistics + ((int64_t{work.unit} * heads + h) * q_tiles.total + seen[j]) * 2 * kN;
          mbarrier_wait(g_free + stage, ended);  // before q
          mbarrier_expect(g_there + stage, C::kTileBytes);
          load_tile<kDim, kN>(gs + stage * kTile, g_map, g_there + stage, a.q_at, qt, sample, head);
          mbarrier_wait(q_free + stage, ended);
          const int latest = static_cast<int>(mask.lowest(qt.at + qt.count - 1));
          steps[stage] =
              Step::of(qt.at, qt.count, kt.at + C::kRows - 1 > qt.at || latest > kt.at, n + 1 < steps_of_all);
          mbarrier_expect(q_there + stage, C::kTileBytes + 8 * kN);
          load_tile<kDim, kN>(qs + stage * kTile, q_map, q_there + stage, a.q_at, qt, sample, head);
          load_bytes(columns + stage * 2 * kN, from, 8 * kN, q_there + stage);
          if (++j == seen.total) j = 0, ++h;
        }
      }
    }
  } else {
    more_registers<C::kMany>();
    const int group = warp_index() / 4 - 1, lane = threadIdx.x % kWarp;
    const int first = warp_index() * 16 - 64;  // first of the warp's keys
    const float scale = score_scale<float>(a), to_log2 = scale * kToLog2;
    float acc_k[kDim / 2], acc_v[kDim / 2], p[kN / 2], ds[kN / 2];
    OwnRows<C, T, kHoldsOwn<kDim>> own_k{ks};
    uint32_t weights[kN / 16][4];  // probabilities, then gradients of scores
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc_k[i] = acc_v[i] = 0;
    // Turns scores into probabilities.
    const auto soften = [&](const Step& qt, int stage) {
      const float* const column = columns + stage * 2 * kN + lane % 4 * 2;
      // Queries beyond the tile have an infinite lse. Results for keys beyond the tile are not written.
      if (mask.causal_only()) {
        // A query sees the keys up to its own: one comparison each, if this warpgroup has later keys.
        if (kt.at + 64 * group + 63 > qt.at) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int hidden = first + 8 * half + lane / 4 + kt.at - qt.at - lane % 4 * 2;
#pragma unroll
            for (int c = 0; c < kN / 8; ++c)
#pragma unroll
              for (int odd = 0; odd < 2; ++odd)
                if (8 * c + odd < hidden) p[4 * c + 2 * half + odd] = -INFINITY;
          }
        }
      } else if (qt.hidden()) {
#pragma unroll
        for (int c = 0; c < kN / 8; ++c)
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const int query = qt.at + std::min(8 * c + lane % 4 * 2 + odd, qt.count() - 1);
            const int begin = static_cast<int>(mask.lowest(query)) - kt.at, end = query - kt.at + 1;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int row = first + 8 * half + lane / 4;
              if (row < begin || row >= end) p[4 * c + 2 * half + odd] = -INFINITY;
            }
          }
      }
#pragma unroll
      for (int c = 0; c < kN / 8; ++c)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const float col_lse = column[8 * c + odd];
#pragma unroll
          for (int i = 4 * c + odd; i < 4 * c + 4; i += 2) p[i] = exp2_fast(p[i] * to_log2 - col_lse);
        }
    };
    const auto differentiate = [&](int stage) {
      const float* const column = columns + stage * 2 * kN + kN + lane % 4 * 2;
#pragma unroll
      for (int c = 0; c < kN / 8; ++c)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const float col_delta = column[8 * c + odd];
#pragma unroll
          for (int i = 4 * c + odd; i < 4 * c + 4; i += 2) ds[i] = p[i] * (ds[i] - col_delta);
        }
    };
    // Step n, after its queries have arrived.
    const auto step_of = [&](int n) {
      mbarrier_wait(q_there + n % kStages, n / kStages % 2);
      return read_step(steps + n % kStages);
    };
    const auto done_with = [&](Mbarrier* free) { mbarrier_arrive_if(lane == 0, free); };
    // Advances to the next step with a query that sees a key of this warpgroup; false if there is none. The
    // other warpgroup may run a step that is skipped here. `held`: buffer of queries that matmuls still read.
    // A skipped step first waits for them and frees the buffer, which the next tile needs.
    int n = -1, stage = 0, held = -1;
    Step step = Step::of(0, 0, false, true);
    const auto advance = [&] {
      while (step.more()) {
        step = step_of(++n);
        stage = uniform(n % kStages);  // for descriptors in uniform registers
        if (step.at + step.count() > kt.at + 64 * group) return true;
        done_with(g_free + stage);
        if (held >= 0) {
          wgmma_wait<0>();
          in_flight(acc_k);
          done_with(q_free + held);
          held = -1;
        }
        done_with(q_free + stage);
      }
      return false;
    };
    // Each of these starts a wgmma group of step n.
    const auto begin_p = [&] {
      wgmma_fence();
      own_k.begin(p, 64 * group, qs + stage * kTile);
      wgmma_commit();
    };
    const auto begin_ds = [&] {
      mbarrier_wait(g_there + stage, n / kStages % 2);
      wgmma_fence();
      begin_scores<T, kDim, C::kRows, kN>(ds, vs, 64 * group, gs + stage * kTile);
      wgmma_commit();
    };
    const auto begin_dv = [&] {
      wgmma_fence();
      begin_sums<T, kDim, kN>(acc_v, weights, gs + stage * kTile);
      wgmma_commit();
    };
    const auto begin_dk = [&] {
      wgmma_fence();
      begin_sums<T, kDim, kN>(acc_k, weights, qs + stage * kTile);
      wgmma_commit();
    };

    mbarrier_wait(own_there, 0);
    own_k.take(first);
    if (advance()) {
      in_flight(p), in_flight(ds), in_flight(acc_k), in_flight(acc_v);
      begin_p();
      for (;;) {
        begin_ds();
        wgmma_wait<1>();
        in_flight(p);
        soften(step, stage);
        as_left<T, kN>(weights, p);
        begin_dv();
        wgmma_wait<1>();
        in_flight(ds);
        differentiate(stage);
        wgmma_wait<0>();
        in_flight(acc_v);
        done_with(g_free + stage);
        as_left<T, kN>(weights, ds);
        begin_dk();
        held = stage;
        if (!advance()) break;
        begin_p();  // beside the dK matmul; ptxas serialises other orders (scripts/gpu/keep-resources.sh)
        wgmma_wait<1>();
        in_flight(acc_k);
        if (held >= 0) done_with(q_free + held);
      }
      wgmma_wait<0>();
      in_flight(acc_k);
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half + lane / 4;
      if (row >= kt.count) continue;
      const int64_t to_row = sample * a.k_at.rows + kt.row + row;
      give_row<T>(dk, to_row, kv_head * kDim + lane % 4 * 2, acc_k, half, scale);
      give_row<T>(dv, to_row, kv_head * kDim + lane % 4 * 2, acc_v, half, 1.0f);
    }
  }
#endif
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_wgmma_backward(Stream& s, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv,
                              const void* dout, const void* out, const void* lse, const AttentionArgs& a,
                              int64_t statistics_bytes, int64_t blocks) {
  with_mma_type(t, [&]<class T>() {
    with_wgmma_dim(a.head_dim, [&]<int kDim>() {
      using Q = WgmmaQueries<kDim>;
      using K = WgmmaKeys<kDim>;
      const int64_t group = a.heads / a.kv_heads, pairs = a.batch * a.kv_heads;
      const int64_t padded = Tiles(a.q_at, K::kN).total * K::kN;
      // Statistics lie in the stream's scratch. If not all fit, key-value heads are processed in several
      // passes.
      const int64_t fit = std::min<int64_t>(statistics_bytes / (8 * group * padded), 65535 / group);
      LT_CHECK(fit > 0,
               "attention backward: expected the statistics of {} queries of {} heads that share keys to fit "
               "{} bytes of scratch",
               a.q_at.rows, group, statistics_bytes);
      const int64_t width = a.heads * kDim, kv_width = a.kv_heads * kDim;
      const auto queries = [&](const void* data, int64_t stride, int rows) {
        return head_map(data, stride, width, a.q_at, a.batch, rows);
      };
      const auto keys = [&](const void* data, int64_t stride, int rows) {
        return head_map(data, stride, kv_width, a.k_at, a.batch, rows);
      };
      const auto stay = [&](const WorkList& list) {
        return dim3(
            static_cast<unsigned>(std::min<int64_t>(list.pieces(), blocks > 0 ? blocks : multiprocessors())));
      };
      for (int64_t first = 0; first < pairs; first += fit) {
        const int64_t here = std::min(fit, pairs - first), unit = first * group, units = here * group;
        float* const statistics = static_cast<float*>(scratch(s, 8 * units * padded));
        launch(s, dim3(static_cast<unsigned>(padded / RowDot<kDim>::kRows), static_cast<unsigned>(units)),
               kMmaThreads, 0, attention_statistics<K::kN, kDim, T>, statistics, static_cast<const T*>(dout),
               static_cast<const T*>(out), static_cast<const float*>(lse), unit, a);
        constexpr int64_t q_shared = 2 * Q::kOwnBytes + (kKeyStages + kStages) * Q::kTileBytes +
                                     barrier_bytes(2 + 2 * kKeyStages + 2 * kStages, kKeyStages) +
                                     4 * kKeyStages;
        constexpr int64_t kv_shared = 2 * K::kOwnBytes + 2 * kStages * K::kTileBytes + kStages * 8 * K::kN +
                                      barrier_bytes(1 + 4 * kStages, kStages);
        static_assert(q_shared <= kMostShared && kv_shared <= kMostShared);
        const WorkList q_list(units, Tiles(a.q_at, Q::kRows).total, 4 * a.k_at.rows * kDim, group);
        const WorkList kv_list(here, Tiles(a.k_at, K::kRows).total, 4 * group * a.q_at.rows * kDim, 1);
        launch(s, stay(q_list), Q::kThreads, q_shared, attention_wgmma_backward_q<Q, K::kN, T>,
               queries(a.q, a.q_stride, Q::kRows), queries(dout, width, Q::kRows),
               keys(a.k, a.k_stride, Q::kN), keys(a.v, a.v_stride, Q::kN), dq, statistics, unit, q_list,
               work_counter(s), a);
        launch(s, grid_of(kv_list), K::kThreads, kv_shared, attention_wgmma_backward_kv<K, T>,
               queries(a.q, a.q_stride, K::kN), queries(dout, width, K::kN), keys(a.k, a.k_stride, K::kRows),
               keys(a.v, a.v_stride, K::kRows), dk, dv, statistics, first, kv_list, a);
      }
    });
  });
}

}  // namespace ltrain
