// Attention forward on Hopper (after FlashAttention-3, arXiv:2407.08608). Scores of the next tile of keys are
// begun together with the sum over values of the one before, and the exponentials of the one are computed
// while the tensor cores do the other; named barriers have the warpgroups take turns at beginning, so that
// one computes exponentials while another one's products run.
#include "kernels/attention/attention_wgmma_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr float kRise = 8;  ///< log2 of how large a probability may grow, which 16-bit types hold
constexpr float kLn2 = 0.69314718055994531f;

template <class C, class T, class O>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_wgmma_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                            const __grid_constant__ TensorMap v_map, O* out, float* lse, WorkList list,
                            AttentionArgs a) {
#ifdef LT_HOPPER
  constexpr int kDim = C::kDim, kN = C::kN, kTile = kN * kDim;
  const int heads = static_cast<int>(a.heads);
  const WorkList::Work work = list[blockIdx.x];
  const int head = work.unit % heads, sample = work.unit / heads;
  T* const qs = shared_boxes<T>();
  T *const ks = qs + C::kRows * kDim, *const vs = ks + kStages * kTile;
  Mbarrier* const q_there = reinterpret_cast<Mbarrier*>(vs + kStages * kTile);
  Mbarrier *const k_there = q_there + 1, *const v_there = k_there + kStages;
  Mbarrier *const k_free = v_there + kStages, *const v_free = k_free + kStages;
  Step* const steps = reinterpret_cast<Step*>(v_free + kStages);
  const ShortTile qt = Tiles(a.q_at, C::kRows)[list.tiles - 1 - work.tile];  // late ones see most keys
  const Mask mask(a, sample);

  if (threadIdx.x == 0) {
    mbarrier_init(q_there, 1);
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
      mbarrier_expect(q_there, C::kOwnBytes);
      load_tile<kDim, C::kRows>(qs, q_map, q_there, a.q_at, qt, sample, head);
      const int kv_head = head / (heads / static_cast<int>(a.kv_heads));
      const Tiles k_tiles(a.k_at, kN);
      const TileRange seen = keys_seen(k_tiles, mask, qt);
      const int highest = static_cast<int>(mask.lowest(qt.at + qt.count - 1));
      if (seen.total == 0) steps[0] = Step::nothing(), mbarrier_arrive(k_there);
      for (int n = 0; n < seen.total; ++n) {
        const int stage = n % kStages, ended = (n / kStages + 1) % 2;
        const ShortTile kt = k_tiles[seen[n]];
        mbarrier_wait(k_free + stage, ended);
        steps[stage] = Step::keys(kt, kN, qt, highest, n + 1 < seen.total);
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
    const float to_log2 = score_scale<float>(a) * kToLog2;
    // A row's probabilities are 2^(scores - shift). Its shift follows the largest score only where that is
    // more than kRise above it: most tiles leave it, and what was summed, as they are.
    float acc[kDim / 2], s[kN / 2], shift[2] = {-INFINITY, -INFINITY}, sum[2] = {}, fade[2];
    uint32_t weights[kN / 16][4];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc[i] = 0;

    // s becomes the probabilities, as far as they are known; what was summed before is to fade.
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
          for (int n = 0; n < kN / 8; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              if (from + 8 * n + i >= seen) s[4 * n + 2 * half + i] = -INFINITY;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float high = -INFINITY;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
          high = fmaxf(high, fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
        high = quad_reduce(high, Max()) * to_log2;
        if (high - shift[half] <= kRise) high = shift[half];
        const float from = high == -INFINITY ? 0.0f : high;  // -infinity: nothing seen yet
        fade[half] = exp2_fast(shift[half] - from);          // 1 where it stays
        shift[half] = high;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[4 * n + i] = exp2_fast(s[4 * n + i] * to_log2 - from);
            total += s[4 * n + i];
          }
        sum[half] = sum[half] * fade[half] + total;  // of this lane's columns
      }
    };
    const auto done_with = [&](Mbarrier* free) {
      if (lane == 0) mbarrier_arrive(free);
    };

    mbarrier_wait(q_there, 0);
    mbarrier_wait(k_there, 0);
    Step step = read_step(steps);
    if (step.count() > 0) {
      wgmma_fence();
      begin_scores<T, kDim, C::kRows, kN>(s, qs, 64 * group, ks);
      wgmma_commit();
      wgmma_wait<0>();
      in_flight(s);
      done_with(k_free);
      soften(step);
      as_left<T, kN>(weights, s);
      int n = 0;
      for (; step.more(); ++n) {
        const int stage = n % kStages, parity = n / kStages % 2;
        const int next_stage = (n + 1) % kStages, next_parity = (n + 1) / kStages % 2;
        mbarrier_wait(k_there + next_stage, next_parity);
        step = read_step(steps + next_stage);
        if (n > 0 || group > 0) named_sync(1 + group, 2 * kWarpgroup);
        in_flight(s), in_flight(acc);
        wgmma_fence();
        begin_scores<T, kDim, C::kRows, kN>(s, qs, 64 * group, ks + next_stage * kTile);
        wgmma_commit();
        mbarrier_wait(v_there + stage, parity);
        wgmma_fence();
        begin_sums<T, kDim, kN>(acc, weights, vs + stage * kTile);
        wgmma_commit();
        if (step.more() || group < C::kGroups - 1) named_arrive(1 + (group + 1) % C::kGroups, 2 * kWarpgroup);
        wgmma_wait<1>();
        in_flight(s);
        done_with(k_free + next_stage);
        soften(step);
        wgmma_wait_behind<0>(sum[0] + sum[1], v_there + stage, parity);
        in_flight(acc);
        done_with(v_free + stage);
        if (__any_sync(kAllLanes, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < kDim / 2; ++i) acc[i] *= fade[i % 4 / 2];
        }
        as_left<T, kN>(weights, s);
      }
      const int stage = n % kStages;
      mbarrier_wait(v_there + stage, n / kStages % 2);
      in_flight(acc);
      wgmma_fence();
      begin_sums<T, kDim, kN>(acc, weights, vs + stage * kTile);
      wgmma_commit();
      wgmma_wait<0>();
      in_flight(acc);
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = quad_reduce(sum[half], Sum());
      const int row = first + 8 * half + lane / 4;
      if (row >= qt.count) continue;
      const float inverse = all == 0 ? 0.0f : 1.0f / all;
      O* to = out + ((sample * a.q_at.rows + qt.row + row) * heads + head) * kDim + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
        put_pair(to + 8 * d, acc[4 * d + 2 * half] * inverse, acc[4 * d + 2 * half + 1] * inverse);
      if (lane % 4 == 0)
        lse[work.unit * a.q_at.rows + qt.row + row] = all == 0 ? -INFINITY : (shift[half] + log2(all)) * kLn2;
    }
  }
#endif
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_wgmma_forward(Stream& s, DType t, bool wide_out, void* out, void* lse,
                             const AttentionArgs& a) {
  with_mma_type(t, [&]<class T>() {
    with_wgmma_dim(a.head_dim, [&]<int kDim>() {
      using C = WgmmaForward<kDim>;
      const WorkList list(a.batch * a.heads, Tiles(a.q_at, C::kRows).total, 4 * a.k_at.rows * kDim,
                          a.heads / a.kv_heads);
      const TensorMap q = head_map(a.q, a.q_stride, a.heads * kDim, a.q_at, a.batch, C::kRows);
      const TensorMap k = head_map(a.k, a.k_stride, a.kv_heads * kDim, a.k_at, a.batch, C::kN);
      const TensorMap v = head_map(a.v, a.v_stride, a.kv_heads * kDim, a.k_at, a.batch, C::kN);
      constexpr int64_t shared =
          C::kOwnBytes + 2 * kStages * C::kTileBytes + barrier_bytes(1 + 4 * kStages, kStages);
      static_assert(shared <= kMostShared);
      const auto run = [&]<class O>() {
        launch(s, grid_of(list), C::kThreads, shared, cuda::attention_wgmma_forward<C, T, O>, q, k, v,
               static_cast<O*>(out), static_cast<float*>(lse), list, a);
      };
      wide_out ? run.template operator()<float>() : run.template operator()<T>();
    });
  });
}

}  // namespace ltrain
