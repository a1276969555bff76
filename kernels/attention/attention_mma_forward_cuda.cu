// Attention forward on tensor cores (FlashAttention-2, arXiv:2307.08691): scores of a tile of keys, a running
// maximum and sum in float, probabilities rounded to the dtype of the values.
#include "kernels/attention/attention_mma_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

template <class C, class T, class O, ScoreMode kMode>
__global__ void __launch_bounds__(kMmaThreads)
    attention_mma_forward(O* out, float* lse, WorkList list, AttentionArgs a) {
  constexpr int kDim = C::kDim, kValue = C::kValue, kKeys = C::kN * kDim, kTiles = kKeys + C::kN * kValue;
  const WorkList::Work work = list[blockIdx.x];
  const int64_t head = work.unit % a.heads, sample = work.unit / a.heads;
  const int64_t kv_head = head / (a.heads / a.kv_heads);
  const int dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const T* q = rows_of<T>(a.q, a.q_stride, a.q_at.rows, sample, head, dim);
  const T* k = rows_of<T>(a.k, a.k_stride, a.k_at.rows, sample, kv_head, dim);
  const T* v = rows_of<T>(a.v, a.v_stride, a.k_at.rows, sample, kv_head, value_dim);
  T* const qs = shared_memory<T>();
  T* const kvs = qs + C::kRows * kDim;  // two buffers of keys and values
  const Tiles k_tiles(a.k_at, C::kN);
  const Tile qt = Tiles(a.q_at, C::kRows)[list.tiles - 1 - work.tile];  // late queries see most keys
  const Mask mask(a, sample);
  const int64_t highest =
      mask.lowest(qt.at + qt.count - 1);  // every query's document includes keys from here on
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * C::kOwn;
  const float inner = score_scale<float>(a), cap = static_cast<float>(a.soft_cap);
  const float scale = kMode == ScoreMode::soft_cap ? 1.0f : inner, to_log2 = scale * kLog2e;

  const TileRange seen = keys_seen(k_tiles, mask, qt);
  const auto fetch = [&](int n, int buffer) {
    const Tile kt = k_tiles[seen[n]];
    T* to = kvs + buffer * kTiles;
    fetch_rows<kDim, C::kN>(to, k + kt.row * a.k_stride, a.k_stride, kt.count, dim);
    fetch_rows<kValue, C::kN>(to + kKeys, v + kt.row * a.v_stride, a.v_stride, kt.count, value_dim);
  };

  float acc[C::kM][kValue / 8][4] = {}, top[C::kM][2], sum[C::kM][2] = {};
#pragma unroll
  for (int m = 0; m < C::kM; ++m) top[m][0] = top[m][1] = -INFINITY;
  fetch_rows<kDim, C::kRows>(qs, q + qt.row * a.q_stride, a.q_stride, qt.count, dim);
  if (seen.total > 0) fetch(0, 0);
  commit_copies();
  for (int n = 0;; ++n) {
    wait_for_copies();
    if (n >= seen.total) break;
    __syncthreads();  // this tile has arrived, and all warps have read the previous one
    const Tile kt = k_tiles[seen[n]];
    if (n + 1 < seen.total) fetch(n + 1, (n + 1) % 2), commit_copies();
    if (kt.at > qt.at + first + C::kOwn - 1) continue;  // all keys come after this warp's queries
    const T* ks = kvs + n % 2 * kTiles;
    float s[C::kM][C::kN / 8][4];
    row_products<C, kDim>(s, qs, first, ks);
    if constexpr (kMode == ScoreMode::soft_cap) {
#pragma unroll
      for (int m = 0; m < C::kM; ++m)
#pragma unroll
        for (int n = 0; n < C::kN / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m][n][i] = soft_cap_fast(s[m][n][i] * inner, cap).value;
    }

    if (kt.count < C::kN || kt.at + C::kN - 1 > qt.at + first || highest > kt.at) {
#pragma unroll
      for (int m = 0; m < C::kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first + 16 * m + 8 * half + lane / 4;
          const int begin = row < qt.count ? static_cast<int>(mask.begin(qt.at + row, kt)) : 0;
          const int end = row < qt.count ? static_cast<int>(mask.end(qt.at + row, kt)) : 0;
#pragma unroll
          for (int n = 0; n < C::kN / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              const int col = 8 * n + lane % 4 * 2 + i % 2;
              if (col < begin || col >= end) s[m][n][i] = -INFINITY;
            }
        }
    }

#pragma unroll
    for (int m = 0; m < C::kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float high = top[m][half];
#pragma unroll
        for (int n = 0; n < C::kN / 8; ++n)
          high = std::max(high, std::max(s[m][n][2 * half], s[m][n][2 * half + 1]));
        high = quad_reduce(high, Max());
        const float shift = high == -INFINITY ? 0.0f : high * to_log2;  // -infinity: no key seen yet
        const float fade = exp2_fast(top[m][half] * to_log2 - shift);
        top[m][half] = high;
        float total = 0;
#pragma unroll
        for (int n = 0; n < C::kN / 8; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            const float p = exp2_fast(s[m][n][i] * to_log2 - shift);
            total += p;
            s[m][n][i] = p;
          }
        sum[m][half] = sum[m][half] * fade + total;  // sum over this lane's columns
#pragma unroll
        for (int d = 0; d < kValue / 8; ++d) acc[m][d][2 * half] *= fade, acc[m][d][2 * half + 1] *= fade;
        if constexpr (kMode == ScoreMode::dropout) {
          const int64_t query = qt.at + first + 16 * m + 8 * half + lane / 4;
#pragma unroll
          for (int n = 0; n < C::kN / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i)
              s[m][n][i] *= keep_factor(a, sample, head, query, kt.at + 8 * n + lane % 4 * 2 + i % 2);
        }
      }
    uint32_t weights[C::kM][C::kN / 16][4];
    as_weights<C, T>(weights, s);
    add_weighted<C, kValue, kValue>(acc, weights, ks + kKeys, 0);
  }

#pragma unroll
  for (int m = 0; m < C::kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = quad_reduce(sum[m][half], Sum());
      const int row = first + 16 * m + 8 * half + lane / 4;
      if (row >= qt.count) continue;
      const float inverse = all == 0 ? 0.0f : 1.0f / all;
      O* to = out + ((sample * a.q_at.rows + qt.row + row) * a.heads + head) * value_dim + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kValue / 8; ++d)
        if (d < value_dim / 8)
          put_pair(to + 8 * d, acc[m][d][2 * half] * inverse, acc[m][d][2 * half + 1] * inverse);
      if (lane % 4 == 0)
        lse[(sample * a.heads + head) * a.q_at.rows + qt.row + row] =
            all == 0 ? -INFINITY : top[m][half] * scale + log(all);
    }
}

/// Tile sizes for each head dim, chosen by registers (docs/measurements/kernel-resources.json: no spills on
/// sm_80).
template <int kDim, int kValue, ScoreMode kMode>
using ForwardCut = MmaCutFor<kDim, kValue, (kDim <= 128 && kMode != ScoreMode::dropout ? 2 : 1),
                             (kDim <= (kMode == ScoreMode::dropout ? 64 : 96) ? 64 : 32)>;

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_mma_forward(Stream& s, DType t, bool wide_out, void* out, void* lse, const AttentionArgs& a) {
  with_mma_type(t, [&]<class T>() {
    with_mma_dims(a, [&]<int kDim, int kValue>() {
      with_score_mode(a, [&]<ScoreMode kMode>() {
        const auto run = [&]<class O>() {
          using C = ForwardCut<kDim, kValue, kMode>;
          const WorkList list(a.batch * a.heads, Tiles(a.q_at, C::kRows).total,
                              2 * a.k_at.rows * (a.head_dim + a.value_dim), a.heads / a.kv_heads);
          const int64_t shared = int64_t{sizeof(T)} * (kDim * C::kRows + 2 * (kDim + kValue) * C::kN);
          launch(s, grid_of(list), kMmaThreads, shared, cuda::attention_mma_forward<C, T, O, kMode>,
                 static_cast<O*>(out), static_cast<float*>(lse), list, a);
        };
        wide_out ? run.template operator()<float>() : run.template operator()<T>();
      });
    });
  });
}

}  // namespace ltrain
