// Attention backward on Hopper, deterministic: as attention_mma_backward_cuda.cu, one kernel owns keys and
// one owns queries, and both recompute the probabilities; the one of keys works on transposed scores. All
// left operands of the sums are accumulators of the products before, so that nothing but tiles goes through
// shared memory. Exponentials are computed while other products run: those of the sum over the tile before
// in the kernel of queries; in that of keys, which has no registers left for it, those of dout and the
// values.
#include "kernels/attention/attention_wgmma_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// For each tile of kN queries: kN times log2(e) lse, then kN times delta, the sum over channels of dout *
/// out. Where a query sees nothing or is beyond the tile, infinity makes its probabilities zero. One warp a
/// row; heads of samples from `first_unit` on, as lse has them.
template <int kN, class T>
__global__ void __launch_bounds__(kMmaThreads)
    attention_statistics(float* to, const T* dout, const T* out, const float* lse, int64_t first_unit,
                         int64_t units, AttentionArgs a) {
  const Tiles tiles(a.q_at, kN);
  const int64_t i = int64_t{blockIdx.x} * kMmaWarps + threadIdx.x / kWarp, rows = a.q_at.rows;
  if (i >= units * tiles.total * kN) return;
  const int64_t unit = first_unit + i / kN / tiles.total, col = i % kN;
  const Tile tile = tiles[i / kN % tiles.total];
  float sum = 0, log_sum = -INFINITY;
  if (col < tile.count) {
    const int64_t row = tile.row + col;
    const int64_t at = ((unit / a.heads * rows + row) * a.heads + unit % a.heads) * a.head_dim;
    for (int64_t c = threadIdx.x % kWarp * 2; c < a.head_dim; c += 2 * kWarp)
      sum += get(dout, at + c) * get(out, at + c) + get(dout, at + c + 1) * get(out, at + c + 1);
    log_sum = lse[unit * rows + row];
  }
  sum = warp_reduce(sum, Sum());
  if (threadIdx.x % kWarp != 0) return;
  to[i / kN * 2 * kN + col] = log_sum == -INFINITY ? INFINITY : log_sum * kToLog2;
  to[i / kN * 2 * kN + kN + col] = sum;
}

/// For a tile of queries: dq = the sum over keys. `statistics`: by tiles of kStatistics queries.
template <class C, int kStatistics, class T>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_wgmma_backward_q(const __grid_constant__ TensorMap q_map,
                               const __grid_constant__ TensorMap g_map,
                               const __grid_constant__ TensorMap k_map,
                               const __grid_constant__ TensorMap v_map, AttentionSink dq,
                               const float* statistics, int64_t first_unit, AttentionArgs a) {
#ifdef LT_HOPPER
  constexpr int kDim = C::kDim, kN = C::kN, kTile = kN * kDim;
  const int heads = static_cast<int>(a.heads), unit = static_cast<int>(first_unit + blockIdx.y);
  const int head = unit % heads, sample = unit / heads;
  T* const qs = shared_boxes<T>();
  T *const gs = qs + C::kRows * kDim, *const ks = gs + C::kRows * kDim, *const vs = ks + kStages * kTile;
  Mbarrier* const own_there = reinterpret_cast<Mbarrier*>(vs + kStages * kTile);
  Mbarrier *const k_there = own_there + 1, *const v_there = k_there + kStages;
  Mbarrier *const k_free = v_there + kStages, *const v_free = k_free + kStages;
  Step* const steps = reinterpret_cast<Step*>(v_free + kStages);
  const ShortTile qt = Tiles(a.q_at, C::kRows)[gridDim.x - 1 - blockIdx.x];  // those with most keys first
  const Mask mask(a, sample);

  if (threadIdx.x == 0) {
    mbarrier_init(own_there, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(k_there + i, 1), mbarrier_init(v_there + i, 1);
      mbarrier_init(k_free + i, 4 * C::kGroups), mbarrier_init(v_free + i, 4 * C::kGroups);
    }
    mbarrier_init_done();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    fewer_registers<C::kFew>();
    if (threadIdx.x == 0) {
      const int kv_head = head / (heads / static_cast<int>(a.kv_heads));
      mbarrier_expect(own_there, 2 * C::kOwnBytes);
      load_tile<kDim, C::kRows>(qs, q_map, own_there, a.q_at, qt, sample, head);
      load_tile<kDim, C::kRows>(gs, g_map, own_there, a.q_at, qt, sample, head);
      KeyWalk walk(a, mask, qt, kN);
      if (walk.ended()) steps[0] = Step::nothing(), mbarrier_arrive(k_there);
      for (int n = 0; !walk.ended(); ++n) {
        const int stage = n % kStages, ended = (n / kStages + 1) % 2;
        const ShortTile kt = walk.next();
        mbarrier_wait(k_free + stage, ended);
        steps[stage] = Step::of(kt.at, kt.count, walk.hides(kt), !walk.ended());
        mbarrier_expect(k_there + stage, C::kTileBytes);
        load_tile<kDim, kN>(ks + stage * kTile, k_map, k_there + stage, a.k_at, kt, sample, kv_head);
        mbarrier_wait(v_free + stage, ended);
        mbarrier_expect(v_there + stage, C::kTileBytes);
        load_tile<kDim, kN>(vs + stage * kTile, v_map, v_there + stage, a.k_at, kt, sample, kv_head);
      }
    }
  } else {
    more_registers<C::kMany>();
    const int group = warp_index() / 4 - 1, lane = threadIdx.x % kWarp;
    const int first = warp_index() * 16 - 64;  // of the warp's queries
    const float scale = score_scale<float>(a), to_log2 = scale * kToLog2;
    float acc[kDim / 2], s[kN / 2], ds[kN / 2], row_lse[2], row_delta[2];
    uint32_t weights[kN / 16][4];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc[i] = 0;
    const Tiles of_statistics(a.q_at, kStatistics);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A tile here begins where one of the statistics does, and rows beyond its run have infinities.
      const int64_t row = qt.row + std::min(first + 8 * half + lane / 4, qt.count - 1);
      const int64_t in_run = row < a.q_at.split ? row : row - a.q_at.split;
      const int64_t tile = (row < a.q_at.split ? 0 : of_statistics.in_first) + in_run / kStatistics;
      const float* from = statistics + (blockIdx.y * of_statistics.total + tile) * 2 * kStatistics;
      row_lse[half] = from[in_run % kStatistics];
      row_delta[half] = from[kStatistics + in_run % kStatistics];
    }
    const auto done_with = [&](Mbarrier* free) {
      if (lane == 0) mbarrier_arrive(free);
    };

    // Scores become probabilities.
    const auto soften = [&](const Step& kt) {
      if (kt.hidden()) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first + 8 * half + lane / 4;
          const int begin = row < qt.count ? static_cast<int>(mask.lowest(qt.at + row)) - kt.at : 0;
          const int end = row < qt.count ? std::min(qt.at + row - kt.at + 1, kt.count()) : 0;
          // Columns are counted from `begin` on: one comparison each.
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
    // Step n, once its keys are there.
    const auto step_of = [&](int n) {
      mbarrier_wait(k_there + n % kStages, n / kStages % 2);
      return read_step(steps + n % kStages);
    };
    // Scores of tile n in one group, and what its probabilities' gradients are made from in the next.
    const auto begin_tile = [&](int n) {
      const int stage = n % kStages, parity = n / kStages % 2;
      in_flight(s), in_flight(ds), in_flight(acc);
      wgmma_fence();
      begin_scores<T, kDim, C::kRows, kN>(s, qs, 64 * group, ks + stage * kTile);
      wgmma_commit();
      mbarrier_wait(v_there + stage, parity);
      wgmma_fence();
      begin_scores<T, kDim, C::kRows, kN>(ds, gs, 64 * group, vs + stage * kTile);
      wgmma_commit();
    };

    mbarrier_wait(own_there, 0);
    Step step = step_of(0);
    if (step.count() > 0) {
      begin_tile(0);
      wgmma_wait<1>();
      in_flight(s);
      soften(step);
      wgmma_wait<0>();
      in_flight(ds);
      done_with(v_free);
      differentiate();
      as_left<T, kN>(weights, ds);
      int n = 0;
      for (; step.more(); ++n) {
        const int stage = n % kStages;
        step = step_of(n + 1);
        begin_tile(n + 1);
        wgmma_fence();
        begin_sums<T, kDim, kN>(acc, weights, ks + stage * kTile);
        wgmma_commit();
        wgmma_wait<2>();
        in_flight(s);
        soften(step);
        wgmma_wait_behind<1>(s, v_there + (n + 1) % kStages, (n + 1) / kStages % 2);
        in_flight(ds);
        done_with(v_free + (n + 1) % kStages);
        differentiate();
        wgmma_wait<0>();
        in_flight(acc);
        done_with(k_free + stage);
        as_left<T, kN>(weights, ds);
      }
      in_flight(acc);
      wgmma_fence();
      begin_sums<T, kDim, kN>(acc, weights, ks + n % kStages * kTile);
      wgmma_commit();
      wgmma_wait<0>();
      in_flight(acc);
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half + lane / 4;
      if (row >= qt.count) continue;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
        give_pair<T>(dq, sample * a.q_at.rows + qt.row + row, head * kDim + 8 * d + lane % 4 * 2,
                     acc[4 * d + 2 * half] * scale, acc[4 * d + 2 * half + 1] * scale);
    }
  }
#endif
}

/// For a tile of keys: dk and dv = the sums over the queries of all heads that share it.
template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_wgmma_backward_kv(const __grid_constant__ TensorMap q_map,
                                const __grid_constant__ TensorMap g_map,
                                const __grid_constant__ TensorMap k_map,
                                const __grid_constant__ TensorMap v_map, AttentionSink dk, AttentionSink dv,
                                const float* statistics, int64_t first_unit, AttentionArgs a) {
#ifdef LT_HOPPER
  constexpr int kDim = C::kDim, kN = C::kN, kTile = kN * kDim;
  const int kv_heads = static_cast<int>(a.kv_heads), heads = static_cast<int>(a.heads) / kv_heads;
  const int unit = static_cast<int>(first_unit + blockIdx.y);  // a key-value head of a sample
  const int kv_head = unit % kv_heads, sample = unit / kv_heads;
  T* const ks = shared_boxes<T>();
  T *const vs = ks + C::kRows * kDim, *const qs = vs + C::kRows * kDim, *const gs = qs + kStages * kTile;
  float* const columns = reinterpret_cast<float*>(gs + kStages * kTile);
  Mbarrier* const own_there = reinterpret_cast<Mbarrier*>(columns + kStages * 2 * kN);
  Mbarrier *const q_there = own_there + 1, *const g_there = q_there + kStages,
                  *const free = g_there + kStages;
  Step* const steps = reinterpret_cast<Step*>(free + kStages);
  const ShortTile kt = Tiles(a.k_at, C::kRows)[blockIdx.x];  // early keys, which most queries see, first
  const Mask mask(a, sample);

  if (threadIdx.x == 0) {
    mbarrier_init(own_there, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(q_there + i, 1), mbarrier_init(g_there + i, 1);
      mbarrier_init(free + i, 4 * C::kGroups);
    }
    mbarrier_init_done();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    fewer_registers<C::kFew>();
    if (threadIdx.x == 0) {
      mbarrier_expect(own_there, 2 * C::kOwnBytes);
      load_tile<kDim, C::kRows>(ks, k_map, own_there, a.k_at, kt, sample, kv_head);
      load_tile<kDim, C::kRows>(vs, v_map, own_there, a.k_at, kt, sample, kv_head);
      const Tiles q_tiles(a.q_at, kN);
      const int tiles = static_cast<int>(q_tiles.total);
      // Step (h, j): tile j of the queries of the h-th head that shares these keys.
      int h = 0, j = 0;
      const auto seek = [&] {
        for (; h < heads; ++h, j = 0)
          for (; j < tiles; ++j)
            if (const ShortTile qt = q_tiles[j];
                kt.at < qt.at + qt.count && kt.at + kt.count > static_cast<int>(mask.lowest(qt.at)))
              return true;
        return false;
      };
      bool more = seek();
      if (!more) steps[0] = Step::nothing(), mbarrier_arrive(q_there);
      for (int n = 0; more; ++n) {
        const int stage = n % kStages, head = kv_head * heads + h;
        const ShortTile qt = q_tiles[j];
        const float* const from = statistics + ((int64_t{blockIdx.y} * heads + h) * tiles + j) * 2 * kN;
        ++j, more = seek();
        mbarrier_wait(free + stage, (n / kStages + 1) % 2);
        steps[stage] = Step::of(
            qt.at, qt.count,
            kt.at + C::kRows - 1 > qt.at || static_cast<int>(mask.lowest(qt.at + qt.count - 1)) > kt.at,
            more);
        mbarrier_expect(q_there + stage, C::kTileBytes + 8 * kN);
        load_tile<kDim, kN>(qs + stage * kTile, q_map, q_there + stage, a.q_at, qt, sample, head);
        load_bytes(columns + stage * 2 * kN, from, 8 * kN, q_there + stage);
        mbarrier_expect(g_there + stage, C::kTileBytes);
        load_tile<kDim, kN>(gs + stage * kTile, g_map, g_there + stage, a.q_at, qt, sample, head);
      }
    }
  } else {
    more_registers<C::kMany>();
    const int group = warp_index() / 4 - 1, lane = threadIdx.x % kWarp;
    const int first = warp_index() * 16 - 64;  // of the warp's keys
    const float scale = score_scale<float>(a), to_log2 = scale * kToLog2;
    float acc_k[kDim / 2], acc_v[kDim / 2], p[kN / 2], ds[kN / 2];
    uint32_t weights[kN / 16][4];  // probabilities, then gradients of scores
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc_k[i] = acc_v[i] = 0;
    // Scores become probabilities.
    const auto soften = [&](const Step& qt, int stage) {
      const float* const column = columns + stage * 2 * kN + lane % 4 * 2;
      // Queries beyond the tile have an infinite lse, and what is computed for keys beyond theirs is not
      // written.
      if (qt.hidden()) {
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
    // Step n, once its queries are there.
    const auto step_of = [&](int n) {
      mbarrier_wait(q_there + n % kStages, n / kStages % 2);
      return read_step(steps + n % kStages);
    };
    // Each begins a group of products of step n.
    const auto begin_p = [&](int n) {
      in_flight(p), in_flight(ds), in_flight(acc_k), in_flight(acc_v);
      wgmma_fence();
      begin_scores<T, kDim, C::kRows, kN>(p, ks, 64 * group, qs + n % kStages * kTile);
      wgmma_commit();
    };
    const auto begin_ds = [&](int n) {
      mbarrier_wait(g_there + n % kStages, n / kStages % 2);
      wgmma_fence();
      begin_scores<T, kDim, C::kRows, kN>(ds, vs, 64 * group, gs + n % kStages * kTile);
      wgmma_commit();
    };
    const auto begin_dv = [&](int n) {
      wgmma_fence();
      begin_sums<T, kDim, kN>(acc_v, weights, gs + n % kStages * kTile);
      wgmma_commit();
    };
    const auto begin_dk = [&](int n) {
      wgmma_fence();
      begin_sums<T, kDim, kN>(acc_k, weights, qs + n % kStages * kTile);
      wgmma_commit();
    };

    mbarrier_wait(own_there, 0);
    Step step = step_of(0);
    bool more = step.count() > 0;
    for (int n = 0; more; ++n) {
      begin_p(n);
      begin_ds(n);
      wgmma_wait<1>();
      in_flight(p);
      soften(step, n % kStages);
      as_left<T, kN>(weights, p);
      begin_dv(n);
      wgmma_wait<1>();
      in_flight(ds);
      differentiate(n % kStages);
      wgmma_wait<0>();
      in_flight(acc_v);
      as_left<T, kN>(weights, ds);
      begin_dk(n);
      if (more = step.more(); more) step = step_of(n + 1);
      wgmma_wait<0>();
      in_flight(acc_k);
      if (lane == 0) mbarrier_arrive(free + n % kStages);
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half + lane / 4;
      if (row >= kt.count) continue;
      const int64_t to_row = sample * a.k_at.rows + kt.row + row;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        const int64_t col = kv_head * kDim + 8 * d + lane % 4 * 2;
        const int i = 4 * d + 2 * half;
        give_pair<T>(dk, to_row, col, acc_k[i] * scale, acc_k[i + 1] * scale);
        give_pair<T>(dv, to_row, col, acc_v[i], acc_v[i + 1]);
      }
    }
  }
#endif
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_wgmma_backward(Stream& s, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv,
                              const void* dout, const void* out, const void* lse, const AttentionArgs& a,
                              int64_t statistics_bytes) {
  with_mma_type(t, [&]<class T>() {
    with_wgmma_dim(a.head_dim, [&]<int kDim>() {
      using Q = WgmmaQueries<kDim>;
      using K = WgmmaKeys<kDim>;
      const int64_t group = a.heads / a.kv_heads, pairs = a.batch * a.kv_heads;
      const int64_t padded = Tiles(a.q_at, K::kN).total * K::kN;
      // Statistics lie in the stream's scratch; where not all fit, key-value heads are done some at a time.
      const int64_t fit = std::min<int64_t>(statistics_bytes / (8 * group * padded), 65535 / group);
      LT_CHECK(fit > 0, "attention backward of {} queries of {} heads that share keys", a.q_at.rows, group);
      const int64_t width = a.heads * kDim, kv_width = a.kv_heads * kDim;
      const auto queries = [&](const void* data, int64_t stride, int rows) {
        return head_map(data, stride, width, a.q_at, a.batch, rows);
      };
      const auto keys = [&](const void* data, int64_t stride, int rows) {
        return head_map(data, stride, kv_width, a.k_at, a.batch, rows);
      };
      for (int64_t first = 0; first < pairs; first += fit) {
        const int64_t here = std::min(fit, pairs - first), unit = first * group, units = here * group;
        float* const statistics = static_cast<float*>(scratch(s, 8 * units * padded));
        launch(s, dim3(static_cast<unsigned>((units * padded + kMmaWarps - 1) / kMmaWarps)), kMmaThreads, 0,
               attention_statistics<K::kN, T>, statistics, static_cast<const T*>(dout),
               static_cast<const T*>(out), static_cast<const float*>(lse), unit, units, a);
        const int64_t q_shared =
            2 * Q::kOwnBytes + 2 * kStages * Q::kTileBytes + 8 * (1 + 4 * kStages) + kStepBytes;
        const int64_t kv_shared = 2 * K::kOwnBytes + 2 * kStages * K::kTileBytes + kStages * 8 * K::kN +
                                  8 * (1 + 3 * kStages) + kStepBytes;
        launch(s, mma_grid(a.q_at, Q::kRows, 1, units, 1), Q::kThreads, q_shared,
               attention_wgmma_backward_q<Q, K::kN, T>, queries(a.q, a.q_stride, Q::kRows),
               queries(dout, width, Q::kRows), keys(a.k, a.k_stride, Q::kN), keys(a.v, a.v_stride, Q::kN), dq,
               statistics, unit, a);
        launch(s, mma_grid(a.k_at, K::kRows, 1, here, 1), K::kThreads, kv_shared,
               attention_wgmma_backward_kv<K, T>, queries(a.q, a.q_stride, K::kN),
               queries(dout, width, K::kN), keys(a.k, a.k_stride, K::kRows), keys(a.v, a.v_stride, K::kRows),
               dk, dv, statistics, first, a);
      }
    });
  });
}

}  // namespace ltrain
