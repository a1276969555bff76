// Attention backward on tensor cores, deterministic. One kernel owns keys and sums their gradients over all
// queries of their heads; the other owns queries and sums over keys, so that no two blocks add to one
// element. Both recompute the probabilities. The kernel for keys computes transposed scores: their
// accumulators are the left operand of its sums.
#include "kernels/attention/attention_mma_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// delta = sum over channels of dout * out. Grid: (blocks of rows of a head, heads of samples from
/// `first_unit` on, in the order of lse).
template <int kValue, class T>
__global__ void __launch_bounds__(kMmaThreads)
    attention_delta(float* delta, const T* dout, const T* out, int first_unit, int rows, int heads, int dim) {
  using Dot = RowDot<kValue>;
  const int row = static_cast<int>(blockIdx.x) * Dot::kRows + Dot::row();
  const int64_t unit = first_unit + blockIdx.y;
  const int64_t at = (unit / heads * rows + row) * heads + unit % heads;
  const float sum = Dot::of(dout, out, at * dim, dim, row < rows);
  if (row < rows && Dot::first()) delta[unit * rows + row] = sum;
}

template <class C, class T, ScoreMode kMode>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_backward_q(AttentionSink dq, const T* dout, const float* lse, const float* delta,
                             int64_t first_unit, WorkList list, AttentionArgs a) {
  constexpr int kDim = C::kDim, kValue = C::kValue, kKeys = C::kN * kDim, kTiles = kKeys + C::kN * kValue;
  const WorkList::Work work = list[blockIdx.x];
  const int64_t unit = first_unit + work.unit, head = unit % a.heads, sample = unit / a.heads;
  const int64_t kv_head = head / (a.heads / a.kv_heads), row_stride = a.heads * a.value_dim;
  const int dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const T* q = rows_of<T>(a.q, a.q_stride, a.q_at.rows, sample, head, dim);
  const T* g = rows_of<T>(dout, row_stride, a.q_at.rows, sample, head, value_dim);
  const T* k = rows_of<T>(a.k, a.k_stride, a.k_at.rows, sample, kv_head, dim);
  const T* v = rows_of<T>(a.v, a.v_stride, a.k_at.rows, sample, kv_head, value_dim);
  T* const qs = shared_memory<T>();
  T *const gs = qs + C::kRows * kDim, *const kvs = gs + C::kRows * kValue;  // two buffers of keys and values
  const Tiles k_tiles(a.k_at, C::kN);
  const Tile qt = Tiles(a.q_at, C::kRows)[list.tiles - 1 - work.tile];
  const Mask mask(a, sample);
  const int64_t highest = mask.lowest(qt.at + qt.count - 1);
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * C::kOwn;
  const float scale = score_scale<float>(a), cap = static_cast<float>(a.soft_cap), to_log2 = scale * kLog2e;

  const TileRange seen = keys_seen(k_tiles, mask, qt);
  const auto fetch = [&](int n, int buffer) {
    const Tile kt = k_tiles[seen[n]];
    T* to = kvs + buffer * kTiles;
    fetch_rows<kDim, C::kN>(to, k + kt.row * a.k_stride, a.k_stride, kt.count, dim);
    fetch_rows<kValue, C::kN>(to + kKeys, v + kt.row * a.v_stride, a.v_stride, kt.count, value_dim);
  };

  float acc[C::kM][kDim / 8][4] = {}, row_lse[C::kM][2], row_delta[C::kM][2];
#pragma unroll
  for (int m = 0; m < C::kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 16 * m + 8 * half + lane / 4;
      const int64_t at = unit * a.q_at.rows + qt.row + row;
      row_lse[m][half] = row < qt.count ? lse[at] * kLog2e : 0;
      row_delta[m][half] = row < qt.count ? delta[at] : 0;
    }
  fetch_rows<kDim, C::kRows>(qs, q + qt.row * a.q_stride, a.q_stride, qt.count, dim);
  fetch_rows<kValue, C::kRows>(gs, g + qt.row * row_stride, row_stride, qt.count, value_dim);
  if (seen.total > 0) fetch(0, 0);
  commit_copies();
  for (int n = 0;; ++n) {
    wait_for_copies();
    if (n >= seen.total) break;
    __syncthreads();
    const Tile kt = k_tiles[seen[n]];
    if (n + 1 < seen.total) fetch(n + 1, (n + 1) % 2), commit_copies();
    if (kt.at > qt.at + first + C::kOwn - 1) continue;
    const T* ks = kvs + n % 2 * kTiles;
    float s[C::kM][C::kN / 8][4], ds[C::kM][C::kN / 8][4];
    row_products<C, kDim>(s, qs, first, ks);
    row_products<C, kValue>(ds, gs, first, ks + kKeys);
    const bool all_seen = kt.count == C::kN && kt.at + C::kN - 1 <= qt.at + first && highest <= kt.at;
#pragma unroll
    for (int m = 0; m < C::kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + 16 * m + 8 * half + lane / 4;
        int begin = 0, end = C::kN;
        if (!all_seen) {
          begin = row < qt.count ? static_cast<int>(mask.begin(qt.at + row, kt)) : 0;
          end = row < qt.count ? static_cast<int>(mask.end(qt.at + row, kt)) : 0;
        }
#pragma unroll
        for (int n = 0; n < C::kN / 8; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            const int col = 8 * n + lane % 4 * 2 + i % 2;
            const bool seen = col >= begin && col < end;
            float d = ds[m][n][i];
            if constexpr (kMode == ScoreMode::soft_cap) {
              const SoftCapped<float> c = soft_cap_fast(s[m][n][i] * scale, cap);
              const float p = seen ? exp2_fast(c.value * kLog2e - row_lse[m][half]) : 0.0f;
              ds[m][n][i] = p * (d - row_delta[m][half]) * c.slope;
            } else {
              const float p = seen ? exp2_fast(s[m][n][i] * to_log2 - row_lse[m][half]) : 0.0f;
              if constexpr (kMode == ScoreMode::dropout)
                d *= keep_factor(a, sample, head, qt.at + row, kt.at + col);
              ds[m][n][i] = p * (d - row_delta[m][half]);
            }
          }
      }
    uint32_t weights[C::kM][C::kN / 16][4];
    as_weights<C, T>(weights, ds);
    add_weighted<C, kDim, kDim>(acc, weights, ks, 0);
  }

#pragma unroll
  for (int m = 0; m < C::kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 16 * m + 8 * half + lane / 4;
      if (row >= qt.count) continue;
      give_pairs<T, kDim / 8>(dq, sample * a.q_at.rows + qt.row + row, head * dim + lane % 4 * 2, dim / 8,
                              [&](int d, int i) { return acc[m][d][2 * half + i] * scale; });
    }
}

/// kParts: blocks that share the channels of the gradients of a tile of keys, to limit registers.
template <class C, class T, int kParts, ScoreMode kMode>
__global__ void __launch_bounds__(kMmaThreads)
    attention_mma_backward_kv(AttentionSink dk, AttentionSink dv, const T* dout, const float* lse,
                              const float* delta, int64_t first_unit, WorkList list, AttentionArgs a) {
  constexpr int kDim = C::kDim, kValue = C::kValue, kQueries = C::kN * kDim,
                kTiles = kQueries + C::kN * kValue, kOut = kDim / kParts, kOutValue = kValue / kParts;
  const WorkList::Work work = list[blockIdx.x];
  const int64_t group = a.heads / a.kv_heads, unit = first_unit + work.unit;  // a key-value head of a sample
  const int64_t kv_head = unit % a.kv_heads, sample = unit / a.kv_heads, row_stride = a.heads * a.value_dim;
  const int dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const T* k = rows_of<T>(a.k, a.k_stride, a.k_at.rows, sample, kv_head, dim);
  const T* v = rows_of<T>(a.v, a.v_stride, a.k_at.rows, sample, kv_head, value_dim);
  T* const ks = shared_memory<T>();
  T *const vs = ks + C::kRows * kDim, *const qgs = vs + C::kRows * kValue;  // two buffers of q and dout
  float* const columns = reinterpret_cast<float*>(qgs + 2 * kTiles);        // two buffers of lse and delta
  const Tiles q_tiles(a.q_at, C::kN);
  const Tile kt = Tiles(a.k_at, C::kRows)[work.tile / kParts];
  const int part = work.tile % kParts;
  const Mask mask(a, sample);
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * C::kOwn;
  const float scale = score_scale<float>(a), cap = static_cast<float>(a.soft_cap), to_log2 = scale * kLog2e;

  // Step n handles tile n % total of the visible tiles of queries, for head n / total of the group.
  const TileRange seen = queries_that_see(q_tiles, mask, kt);
  const int steps = static_cast<int>(group) * seen.total;
  const auto fetch = [&](int n, int buffer) {
    const Tile qt = q_tiles[seen[n % seen.total]];
    const int64_t head = kv_head * group + n / seen.total;
    const T* q = rows_of<T>(a.q, a.q_stride, a.q_at.rows, sample, head, dim);
    const T* g = rows_of<T>(dout, row_stride, a.q_at.rows, sample, head, value_dim);
    T* to = qgs + buffer * kTiles;
    fetch_rows<kDim, C::kN>(to, q + qt.row * a.q_stride, a.q_stride, qt.count, dim);
    fetch_rows<kValue, C::kN>(to + kQueries, g + qt.row * row_stride, row_stride, qt.count, value_dim);
    const int64_t at = (sample * a.heads + head) * a.q_at.rows + qt.row;
    if (const int i = threadIdx.x; i < 2 * C::kN) {
      const int col = i % C::kN;
      const bool there = col < qt.count;
      copy_async_4(columns + buffer * 2 * C::kN + i, (i < C::kN ? lse : delta) + at + (there ? col : 0),
                   there);
    }
  };

  float acc_k[C::kM][kOut / 8][4] = {}, acc_v[C::kM][kOutValue / 8][4] = {};
  fetch_rows<kDim, C::kRows>(ks, k + kt.row * a.k_stride, a.k_stride, kt.count, dim);
  fetch_rows<kValue, C::kRows>(vs, v + kt.row * a.v_stride, a.v_stride, kt.count, value_dim);
  if (steps > 0) fetch(0, 0);
  commit_copies();
  for (int n = 0;; ++n) {
    wait_for_copies();
    if (n >= steps) break;
    __syncthreads();
    const Tile qt = q_tiles[seen[n % seen.total]];
    [[maybe_unused]] const int64_t head = kv_head * group + n / seen.total;
    if (n + 1 < steps) fetch(n + 1, (n + 1) % 2), commit_copies();
    if (kt.at + first > qt.at + qt.count - 1) continue;  // no query sees this warp's keys
    const T* qs = qgs + n % 2 * kTiles;
    const float* column_lse = columns + n % 2 * 2 * C::kN;
    float p[C::kM][C::kN / 8][4], ds[C::kM][C::kN / 8][4];
    row_products<C, kDim>(p, ks, first, qs);
    row_products<C, kValue>(ds, vs, first, qs + kQueries);
    // Columns beyond the tile's queries are zero in all operands and add nothing to the sums.
    const bool all_seen =
        kt.at + first + C::kOwn - 1 <= qt.at && mask.lowest(qt.at + qt.count - 1) <= kt.at + first;
#pragma unroll
    for (int c = 0; c < C::kN / 8; ++c)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int col = 8 * c + lane % 4 * 2 + odd;
        const float col_lse = column_lse[col] * kLog2e, col_delta = column_lse[C::kN + col];
        int begin = 0, end = C::kRows;
        if (!all_seen) {
          begin = col < qt.count ? static_cast<int>(mask.begin(qt.at + col, kt)) : 0;
          end = col < qt.count ? static_cast<int>(mask.end(qt.at + col, kt)) : 0;
        }
#pragma unroll
        for (int m = 0; m < C::kM; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int i = 2 * half + odd, row = first + 16 * m + 8 * half + lane / 4;
            const bool seen = row >= begin && row < end;
            if constexpr (kMode == ScoreMode::soft_cap) {
              const SoftCapped<float> capped_score = soft_cap_fast(p[m][c][i] * scale, cap);
              p[m][c][i] = seen ? exp2_fast(capped_score.value * kLog2e - col_lse) : 0.0f;
              ds[m][c][i] = p[m][c][i] * (ds[m][c][i] - col_delta) * capped_score.slope;
            } else {
              const float e = seen ? exp2_fast(p[m][c][i] * to_log2 - col_lse) : 0.0f;
              float factor = 1;
              if constexpr (kMode == ScoreMode::dropout)
                factor = keep_factor(a, sample, head, qt.at + col, kt.at + row);
              p[m][c][i] = e * factor;
              ds[m][c][i] = e * (ds[m][c][i] * factor - col_delta);
            }
          }
      }
    uint32_t weights[C::kM][C::kN / 16][4];
    as_weights<C, T>(weights, p);
    add_weighted<C, kValue, kOutValue>(acc_v, weights, qs + kQueries, part * (kOutValue / 8));
    as_weights<C, T>(weights, ds);
    add_weighted<C, kDim, kOut>(acc_k, weights, qs, part * (kOut / 8));
  }

#pragma unroll
  for (int m = 0; m < C::kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 16 * m + 8 * half + lane / 4;
      if (row >= kt.count) continue;
      const int64_t to_row = sample * a.k_at.rows + kt.row + row;
      give_pairs<T, kOut / 8>(dk, to_row, kv_head * dim + part * kOut + lane % 4 * 2, (dim - part * kOut) / 8,
                              [&](int d, int i) { return acc_k[m][d][2 * half + i] * scale; });
      give_pairs<T, kOutValue / 8>(dv, to_row, kv_head * value_dim + part * kOutValue + lane % 4 * 2,
                                   (value_dim - part * kOutValue) / 8,
                                   [&](int d, int i) { return acc_v[m][d][2 * half + i]; });
    }
}

/// Tile sizes for each head dim, chosen by registers (docs/measurements/kernel-resources.json: no spills on
/// sm_80).
template <int kDim, int kValue, ScoreMode kMode>
using QueryCut =
    MmaCutFor<kDim, kValue, (kDim <= 64 && kMode == ScoreMode::plain ? 2 : 1), (kDim <= 192 ? 32 : 16)>;
template <int kDim, int kValue, ScoreMode kMode>
using KeyCut = MmaCutFor<kDim, kValue, 1,
                         (kMode == ScoreMode::dropout && kDim <= 128 ? 16
                          : kDim <= 64                               ? 64
                          : kDim <= 192                              ? 32
                                                                     : 16)>;
template <int kDim>
constexpr int kKeyParts = kDim <= 128 ? 1 : 2;

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_mma_backward(Stream& s, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv,
                            const void* dout, const void* out, const void* lse, const AttentionArgs& a,
                            int64_t delta_bytes) {
  const int64_t group = a.heads / a.kv_heads, rows = a.q_at.rows, pairs = a.batch * a.kv_heads;
  // Deltas lie in the stream's scratch. If not all fit, key-value heads are processed in several passes.
  const int64_t fit = std::min<int64_t>(delta_bytes / (4 * group * rows), 65535 / group);
  LT_CHECK(fit > 0,
           "attention backward: expected the deltas of {} queries of {} heads that share keys to fit {} "
           "bytes of scratch",
           rows, group, delta_bytes);
  with_mma_type(t, [&]<class T>() {
    with_mma_dims(a, [&]<int kDim, int kValue>() {
      constexpr int kParts = kKeyParts<kDim>;
      const T *g = static_cast<const T*>(dout), *o = static_cast<const T*>(out);
      const float* l = static_cast<const float*>(lse);
      for (int64_t first = 0; first < pairs; first += fit) {
        const int64_t here = std::min(fit, pairs - first), unit = first * group, count = here * group * rows;
        float* delta = static_cast<float*>(scratch(s, 4 * count)) - unit * rows;
        launch(s,
               dim3(static_cast<unsigned>((rows + RowDot<kValue>::kRows - 1) / RowDot<kValue>::kRows),
                    static_cast<unsigned>(here * group)),
               kMmaThreads, 0, attention_delta<kValue, T>, delta, g, o, unit, rows, a.heads, a.value_dim);
        with_score_mode(a, [&]<ScoreMode kMode>() {
          using Q = QueryCut<kDim, kValue, kMode>;
          using K = KeyCut<kDim, kValue, kMode>;
          const WorkList q_list(here * group, Tiles(a.q_at, Q::kRows).total,
                                2 * a.k_at.rows * (a.head_dim + a.value_dim), group);
          const WorkList kv_list(here, kParts * Tiles(a.k_at, K::kRows).total,
                                 2 * group * rows * (a.head_dim + a.value_dim), 1);
          const auto shared = [](int64_t own, int64_t other) {
            return int64_t{sizeof(T)} * (kDim + kValue) * (own + 2 * other);
          };
          const int64_t q_shared = shared(Q::kRows, Q::kN);
          const int64_t kv_shared = shared(K::kRows, K::kN) + 16 * K::kN;
          launch(s, grid_of(q_list), kMmaThreads, q_shared, attention_mma_backward_q<Q, T, kMode>, dq, g, l,
                 delta, unit, q_list, a);
          launch(s, grid_of(kv_list), kMmaThreads, kv_shared, attention_mma_backward_kv<K, T, kParts, kMode>,
                 dk, dv, g, l, delta, first, kv_list, a);
        });
      }
    });
  });
}

}  // namespace ltrain
