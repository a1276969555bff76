// Attention forward on Hopper (after FlashAttention-3, arXiv:2407.08608). Scores of the next tile of keys
// start together with P V of the previous tile. The exponentials of one overlap with the matmul of the other.
// Named barriers make the warpgroups start alternately, so that one computes exponentials while the matmuls
// of another run. Blocks are persistent: the queries and keys of the next tile arrive during the last P V and
// the bulk stores of the current one.
#include "kernels/attention/attention_wgmma_cuda.h"
#include "kernels/cuda/persistent_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr float kRise = 8;  ///< log2 of the largest probability before a rescale; 16-bit types hold it
constexpr float kLn2 = 0.69314718055994531f;

template <class C, class T, class O>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_wgmma_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                            const __grid_constant__ TensorMap v_map,
                            const __grid_constant__ TensorMap out_map, float* lse, WorkList list,
                            unsigned* counter, AttentionArgs a) {
#ifdef LT_HOPPER
  constexpr int kDim = C::kDim, kN = C::kN, kTile = kN * kDim;
  const int heads = static_cast<int>(a.heads);
  T* const qs = shared_boxes<T>();
  T *const ks = qs + C::kRows * kDim, *const vs = ks + kStages * kTile;
  O* const outs = reinterpret_cast<O*>(vs + kStages * kTile);
  Mbarrier* const q_there = reinterpret_cast<Mbarrier*>(outs + C::kRows * kDim);
  Mbarrier *const q_free = q_there + 1, *const k_there = q_free + 1, *const v_there = k_there + kStages;
  Mbarrier *const k_free = v_there + kStages, *const v_free = k_free + kStages;
  Step* const steps = reinterpret_cast<Step*>(v_free + kStages);
  int* const pieces = reinterpret_cast<int*>(steps + kStages);  // pieces whose first step is in the slot
  // Tiles are numbered from the heaviest: late queries see most keys.
  const auto queries_of = [&](const WorkList::Work& work) -> ShortTile {
    return Tiles(a.q_at, C::kRows)[list.tiles - 1 - work.tile];
  };

  if (threadIdx.x == 0) {
    mbarrier_init(q_there, 1), mbarrier_init(q_free, 4 * C::kGroups);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(k_there + i, 1), mbarrier_init(v_there + i, 1);
      mbarrier_init(k_free + i, 4 * C::kGroups), mbarrier_init(v_free + i, 4 * C::kGroups);
    }
    mbarrier_init_done();
  }
  __syncthreads();

  Ring<1> q;
  Ring<kStages> k, v;
  if (threadIdx.x < kWarpgroup) {
    fewer_registers<C::kFew>();
    if (threadIdx.x == 0) {
      for (int piece = static_cast<int>(blockIdx.x);;) {
        mbarrier_wait(k_free + k.stage, k.parity ^ 1);
        pieces[k.stage] = piece;
        if (piece >= list.pieces()) break;
        const WorkList::Work work = list[piece];
        piece = next_piece(counter, list.pieces());
        const int head = work.unit % heads, sample = work.unit / heads;
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
            mbarrier_wait(q_free, q.parity ^ 1);
            mbarrier_expect(q_there, C::kOwnBytes);
            load_tile<kDim, C::kRows>(qs, q_map, q_there, a.q_at, qt, sample, head);
            q.next();
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
    const float to_log2 = score_scale<float>(a) * kToLog2;
    O* const mine = outs + first * kDim;
    const auto done_with = [&](Mbarrier* free) {
      if (lane == 0) mbarrier_arrive(free);
    };

    for (;; k.next()) {
      mbarrier_wait(k_there + k.stage, k.parity);
      const int piece = uniform(pieces[k.stage]);
      if (piece >= list.pieces()) break;
      Step step = read_step(steps + k.stage);
      const WorkList::Work work = list[piece];
      const int head = work.unit % heads, sample = work.unit / heads;
      const ShortTile qt = queries_of(work);
      const Mask mask(a, sample);
      // A row's probabilities are 2^(scores - shift). The shift follows the largest score only if that is
      // more than kRise above it. Most tiles therefore rescale neither the shift nor the sums.
      float acc[kDim / 2], s[kN / 2], shift[2] = {-INFINITY, -INFINITY}, sum[2] = {}, fade[2];
      uint32_t weights[kN / 16][4];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) acc[i] = 0;

      // s becomes the probabilities under the current shift; `fade` rescales the earlier sums.
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
          const float from = high == -INFINITY ? 0.0f : high;  // -infinity: no key seen yet
          fade[half] = exp2_fast(shift[half] - from);          // 1 if the shift is unchanged
          shift[half] = high;
          float total = 0;
#pragma unroll
          for (int n = 0; n < kN / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              s[4 * n + i] = exp2_fast(s[4 * n + i] * to_log2 - from);
              total += s[4 * n + i];
            }
          sum[half] = sum[half] * fade[half] + total;  // sum over this lane's columns
        }
      };

      if (step.count() == 0) done_with(k_free + k.stage);
      if (step.count() > 0) {
        mbarrier_wait(q_there, q.parity);
        wgmma_fence();
        begin_scores<T, kDim, C::kRows, kN>(s, qs, 64 * group, ks + k.stage * kTile);
        wgmma_commit();
        wgmma_wait<0>();
        in_flight(s);
        done_with(k_free + k.stage);
        if (!step.more()) done_with(q_free);
        soften(step);
        as_left<T, kN>(weights, s);
        for (int n = 0; step.more(); ++n, v.next()) {
          k.next();
          mbarrier_wait(k_there + k.stage, k.parity);
          step = read_step(steps + k.stage);
          if (n > 0 || group > 0) named_sync(1 + group, 2 * kWarpgroup);
          in_flight(s), in_flight(acc);
          wgmma_fence();
          begin_scores<T, kDim, C::kRows, kN>(s, qs, 64 * group, ks + k.stage * kTile);
          wgmma_commit();
          mbarrier_wait(v_there + v.stage, v.parity);
          wgmma_fence();
          begin_sums<T, kDim, kN>(acc, weights, vs + v.stage * kTile);
          wgmma_commit();
          if (step.more() || group < C::kGroups - 1)
            named_arrive(1 + (group + 1) % C::kGroups, 2 * kWarpgroup);
          wgmma_wait<1>();
          in_flight(s);
          done_with(k_free + k.stage);
          if (!step.more()) done_with(q_free);
          soften(step);
          wgmma_wait_behind<0>(sum[0] + sum[1], v_there + v.stage, v.parity);
          in_flight(acc);
          done_with(v_free + v.stage);
          if (__any_sync(kAllLanes, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < kDim / 2; ++i) acc[i] *= fade[i % 4 / 2];
          }
          as_left<T, kN>(weights, s);
        }
        mbarrier_wait(v_there + v.stage, v.parity);
        in_flight(acc);
        wgmma_fence();
        begin_sums<T, kDim, kN>(acc, weights, vs + v.stage * kTile);
        wgmma_commit();
        wgmma_wait<0>();
        in_flight(acc);
        done_with(v_free + v.stage);
        q.next(), v.next();
      }

      if (lane == 0) wait_for_stores();  // stores of the previous piece
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float all = quad_reduce(sum[half], Sum());
        const int row = 8 * half + lane / 4;
        const float inverse = all == 0 ? 0.0f : 1.0f / all;
#pragma unroll
        for (int d = 0; d < kDim / 8; ++d)
          put_pair(mine + place_in_boxes<O>(row, 8 * d + lane % 4 * 2), acc[4 * d + 2 * half] * inverse,
                   acc[4 * d + 2 * half + 1] * inverse);
        if (lane % 4 == 0 && first + row < qt.count)
          lse[work.unit * a.q_at.rows + qt.row + first + row] =
              all == 0 ? -INFINITY : (shift[half] + log2(all)) * kLn2;
      }
      show_to_products();
      __syncwarp();
      if (lane == 0 && first < qt.count) store_rows<kDim>(out_map, mine, a.q_at, qt, first, sample, head);
    }
    if (lane == 0) wait_for_stores();
  }
#endif
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_wgmma_forward(Stream& s, DType t, bool wide_out, void* out, void* lse, const AttentionArgs& a,
                             int64_t blocks) {
  with_mma_type(t, [&]<class T>() {
    with_wgmma_dim(a.head_dim, [&]<int kDim>() {
      using C = WgmmaForward<kDim>;
      const WorkList list(a.batch * a.heads, Tiles(a.q_at, C::kRows).total, 4 * a.k_at.rows * kDim,
                          a.heads / a.kv_heads);
      const TensorMap q = head_map(a.q, a.q_stride, a.heads * kDim, a.q_at, a.batch, C::kRows);
      const TensorMap k = head_map(a.k, a.k_stride, a.kv_heads * kDim, a.k_at, a.batch, C::kN);
      const TensorMap v = head_map(a.v, a.v_stride, a.kv_heads * kDim, a.k_at, a.batch, C::kN);
      const int64_t stay = std::min<int64_t>(list.pieces(), blocks > 0 ? blocks : multiprocessors());
      const auto run = [&]<class O>() {
        constexpr int64_t kPair = sizeof(O) / 2;  // elements of the map for one element of O
        constexpr int64_t shared = C::kOwnBytes * (1 + kPair) + 2 * kStages * C::kTileBytes +
                                   barrier_bytes(2 + 4 * kStages, kStages) + 4 * kStages;
        static_assert(shared <= kMostShared);
        const int64_t width = kPair * a.heads * kDim;
        launch(s, dim3(static_cast<unsigned>(stay)), C::kThreads, shared,
               cuda::attention_wgmma_forward<C, T, O>, q, k, v,
               head_map(out, width, width, a.q_at, a.batch, kStoreRows), static_cast<float*>(lse), list,
               work_counter(s), a);
      };
      wide_out ? run.template operator()<float>() : run.template operator()<T>();
    });
  });
}

}  // namespace ltrain
