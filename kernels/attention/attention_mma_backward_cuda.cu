// Attention backward on tensor cores, deterministic: one kernel owns keys and sums their gradients over all
// queries of their heads, one owns queries and sums over keys, so that nothing is added to by two blocks.
// Both recompute the probabilities. The one of keys works on transposed scores, whose accumulators are the
// left operand that its sums need.
#include "kernels/attention/attention_mma_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

/// delta = sum over channels of dout * out, one warp a row; heads and samples from `unit` on, as lse has
/// them.
template <class T>
__global__ void __launch_bounds__(kMmaThreads)
    attention_delta(float* delta, const T* dout, const T* out, int64_t first, int64_t count, int64_t heads,
                    int64_t rows, int64_t dim) {
  const int64_t i = int64_t{blockIdx.x} * kMmaWarps + threadIdx.x / kWarp;
  if (i >= count) return;
  const int64_t unit = (first + i) / rows, row = (first + i) % rows;  // the unit is a head of a sample
  const int64_t at = ((unit / heads * rows + row) * heads + unit % heads) * dim;
  float sum = 0;
  for (int64_t c = threadIdx.x % kWarp * 2; c < dim; c += 2 * kWarp)
    sum += get(dout, at + c) * get(out, at + c) + get(dout, at + c + 1) * get(out, at + c + 1);
  sum = warp_reduce(sum, Sum());
  if (threadIdx.x % kWarp == 0) delta[first + i] = sum;
}

template <class C, class T, ScoreMode kMode>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_backward_q(AttentionSink dq, const T* dout, const float* lse, const float* delta,
                             int64_t first_unit, AttentionArgs a) {
  constexpr int kDim = C::kDim, kValue = C::kValue, kKeys = C::kN * kDim, kTiles = kKeys + C::kN * kValue;
  const int64_t unit = first_unit + blockIdx.y, head = unit % a.heads, sample = unit / a.heads;
  const int64_t kv_head = head / (a.heads / a.kv_heads), row_stride = a.heads * kValue;
  const T* q = rows_of<T>(a.q, a.q_stride, a.q_at.rows, sample, head, kDim);
  const T* g = rows_of<T>(dout, row_stride, a.q_at.rows, sample, head, kValue);
  const T* k = rows_of<T>(a.k, a.k_stride, a.k_at.rows, sample, kv_head, kDim);
  const T* v = rows_of<T>(a.v, a.v_stride, a.k_at.rows, sample, kv_head, kValue);
  T* const qs = shared_memory<T>();
  T *const gs = qs + C::kRows * kDim, *const kvs = gs + C::kRows * kValue;  // two buffers of keys and values
  const Tiles k_tiles(a.k_at, C::kN);
  const Tile qt = Tiles(a.q_at, C::kRows)[gridDim.x - 1 - blockIdx.x];
  const Mask mask(a, sample);
  const int64_t highest = mask.lowest(qt.at + qt.count - 1);
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * C::kOwn;
  const float scale = score_scale<float>(a), cap = static_cast<float>(a.soft_cap), to_log2 = scale * kLog2e;

  const auto seen_from = [&](int64_t j) {
    while (j < k_tiles.total && mask.hides(qt, k_tiles[j])) ++j;
    return j;
  };
  const auto fetch = [&](int64_t j, int buffer) {
    const Tile kt = k_tiles[j];
    T* to = kvs + buffer * kTiles;
    fetch_rows<kDim, C::kN>(to, k + kt.row * a.k_stride, a.k_stride, kt.count);
    fetch_rows<kValue, C::kN>(to + kKeys, v + kt.row * a.v_stride, a.v_stride, kt.count);
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
  fetch_rows<kDim, C::kRows>(qs, q + qt.row * a.q_stride, a.q_stride, qt.count);
  fetch_rows<kValue, C::kRows>(gs, g + qt.row * row_stride, row_stride, qt.count);
  int64_t j = seen_from(0);
  if (j < k_tiles.total) fetch(j, 0);
  commit_copies();
  for (int buffer = 0;; buffer ^= 1) {
    wait_for_copies();
    if (j >= k_tiles.total) break;
    __syncthreads();
    const Tile kt = k_tiles[j];
    if (j = seen_from(j + 1); j < k_tiles.total) fetch(j, buffer ^ 1), commit_copies();
    if (kt.at > qt.at + first + C::kOwn - 1) continue;
    const T* ks = kvs + buffer * kTiles;
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
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
        give_pair<T>(dq, sample * a.q_at.rows + qt.row + row, head * kDim + 8 * d + lane % 4 * 2,
                     acc[m][d][2 * half] * scale, acc[m][d][2 * half + 1] * scale);
    }
}

/// kParts: blocks that share the channels of the gradients of a tile of keys, where registers ask for it.
template <class C, class T, int kParts, ScoreMode kMode>
__global__ void __launch_bounds__(kMmaThreads)
    attention_mma_backward_kv(AttentionSink dk, AttentionSink dv, const T* dout, const float* lse,
                              const float* delta, int64_t first_unit, AttentionArgs a) {
  constexpr int kDim = C::kDim, kValue = C::kValue, kQueries = C::kN * kDim,
                kTiles = kQueries + C::kN * kValue, kOut = kDim / kParts, kOutValue = kValue / kParts;
  const int64_t group = a.heads / a.kv_heads, unit = first_unit + blockIdx.y;  // a key-value head of a sample
  const int64_t kv_head = unit % a.kv_heads, sample = unit / a.kv_heads, row_stride = a.heads * kValue;
  const T* k = rows_of<T>(a.k, a.k_stride, a.k_at.rows, sample, kv_head, kDim);
  const T* v = rows_of<T>(a.v, a.v_stride, a.k_at.rows, sample, kv_head, kValue);
  T* const ks = shared_memory<T>();
  T *const vs = ks + C::kRows * kDim, *const qgs = vs + C::kRows * kValue;  // two buffers of q and dout
  float* const columns = reinterpret_cast<float*>(qgs + 2 * kTiles);        // and of lse and delta
  const Tiles q_tiles(a.q_at, C::kN);
  const Tile kt = Tiles(a.k_at, C::kRows)[blockIdx.x / kParts];
  const int part = blockIdx.x % kParts;
  const Mask mask(a, sample);
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * C::kOwn;
  const float scale = score_scale<float>(a), cap = static_cast<float>(a.soft_cap), to_log2 = scale * kLog2e;

  // Step n is tile n % total of the queries of the head n / total of the group.
  const int64_t steps = group * q_tiles.total;
  const auto seen_from = [&](int64_t n) {
    while (n < steps && mask.hides(q_tiles[n % q_tiles.total], kt)) ++n;
    return n;
  };
  const auto fetch = [&](int64_t n, int buffer) {
    const Tile qt = q_tiles[n % q_tiles.total];
    const int64_t head = kv_head * group + n / q_tiles.total;
    const T* q = rows_of<T>(a.q, a.q_stride, a.q_at.rows, sample, head, kDim);
    const T* g = rows_of<T>(dout, row_stride, a.q_at.rows, sample, head, kValue);
    T* to = qgs + buffer * kTiles;
    fetch_rows<kDim, C::kN>(to, q + qt.row * a.q_stride, a.q_stride, qt.count);
    fetch_rows<kValue, C::kN>(to + kQueries, g + qt.row * row_stride, row_stride, qt.count);
    const int64_t at = (sample * a.heads + head) * a.q_at.rows + qt.row;
    if (const int i = threadIdx.x; i < 2 * C::kN) {
      const int col = i % C::kN;
      const bool there = col < qt.count;
      copy_async_4(columns + buffer * 2 * C::kN + i, (i < C::kN ? lse : delta) + at + (there ? col : 0),
                   there);
    }
  };

  float acc_k[C::kM][kOut / 8][4] = {}, acc_v[C::kM][kOutValue / 8][4] = {};
  fetch_rows<kDim, C::kRows>(ks, k + kt.row * a.k_stride, a.k_stride, kt.count);
  fetch_rows<kValue, C::kRows>(vs, v + kt.row * a.v_stride, a.v_stride, kt.count);
  int64_t n = seen_from(0);
  if (n < steps) fetch(n, 0);
  commit_copies();
  for (int buffer = 0;; buffer ^= 1) {
    wait_for_copies();
    if (n >= steps) break;
    __syncthreads();
    const Tile qt = q_tiles[n % q_tiles.total];
    [[maybe_unused]] const int64_t head = kv_head * group + n / q_tiles.total;
    if (n = seen_from(n + 1); n < steps) fetch(n, buffer ^ 1), commit_copies();
    if (kt.at + first > qt.at + qt.count - 1) continue;  // no query sees this warp's keys
    const T* qs = qgs + buffer * kTiles;
    const float* column_lse = columns + buffer * 2 * C::kN;
    float p[C::kM][C::kN / 8][4], ds[C::kM][C::kN / 8][4];
    row_products<C, kDim>(p, ks, first, qs);
    row_products<C, kValue>(ds, vs, first, qs + kQueries);
    // Columns beyond the tile's queries are zeros in all operands, and give none of the sums anything.
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
#pragma unroll
      for (int d = 0; d < kOut / 8; ++d) {
        const int64_t col = kv_head * kDim + part * kOut + 8 * d + lane % 4 * 2;
        give_pair<T>(dk, to_row, col, acc_k[m][d][2 * half] * scale, acc_k[m][d][2 * half + 1] * scale);
      }
#pragma unroll
      for (int d = 0; d < kOutValue / 8; ++d) {
        const int64_t col = kv_head * kValue + part * kOutValue + 8 * d + lane % 4 * 2;
        give_pair<T>(dv, to_row, col, acc_v[m][d][2 * half], acc_v[m][d][2 * half + 1]);
      }
    }
}

/// For each head dim; chosen by registers (docs/measurements/kernel-resources.json: no spills on sm_80).
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
  // Deltas lie in the stream's scratch; where not all fit, key-value heads are done some at a time.
  const int64_t fit = std::min<int64_t>(delta_bytes / (4 * group * rows), 65535 / group);
  LT_CHECK(fit > 0, "attention backward of {} queries of {} heads that share keys", rows, group);
  with_mma_type(t, [&]<class T>() {
    with_mma_dims(a, [&]<int kDim, int kValue>() {
      constexpr int kParts = kKeyParts<kDim>;
      const T *g = static_cast<const T*>(dout), *o = static_cast<const T*>(out);
      const float* l = static_cast<const float*>(lse);
      for (int64_t first = 0; first < pairs; first += fit) {
        const int64_t here = std::min(fit, pairs - first), unit = first * group, count = here * group * rows;
        float* delta = static_cast<float*>(scratch(s, 4 * count)) - unit * rows;
        launch(s, dim3(static_cast<unsigned>((count + kMmaWarps - 1) / kMmaWarps)), kMmaThreads, 0,
               attention_delta<T>, delta, g, o, unit * rows, count, a.heads, rows, a.value_dim);
        with_score_mode(a, [&]<ScoreMode kMode>() {
          using Q = QueryCut<kDim, kValue, kMode>;
          using K = KeyCut<kDim, kValue, kMode>;
          const dim3 q_grid = mma_grid(a.q_at, Q::kRows, 1, here * group, 1);
          const dim3 kv_grid = mma_grid(a.k_at, K::kRows, kParts, here, 1);
          const auto shared = [](int64_t own, int64_t other) {
            return int64_t{sizeof(T)} * (kDim + kValue) * (own + 2 * other);
          };
          const int64_t q_shared = shared(Q::kRows, Q::kN);
          const int64_t kv_shared = shared(K::kRows, K::kN) + 16 * K::kN;
          launch(s, q_grid, kMmaThreads, q_shared, attention_mma_backward_q<Q, T, kMode>, dq, g, l, delta,
                 unit, a);
          launch(s, kv_grid, kMmaThreads, kv_shared, attention_mma_backward_kv<K, T, kParts, kMode>, dk, dv,
                 g, l, delta, first, a);
        });
      }
    });
  });
}

}  // namespace ltrain
