// Base kernels of attention on the GPU: FlashAttention-2 in plain float arithmetic (double for f64), any head
// dim up to 256, deterministic. Eight neighbouring threads share a row of a tile. The backward runs once for
// queries and once for keys, so that no two blocks add to one element.
#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_choice.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/attention_mma_cuda.h"
#include "kernels/attention/attention_tiles.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/soft_cap_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kSpan = 8;  // threads that share a row

/// Tile sizes. Tiles of doubles have fewer rows, so that four tiles of 256 channels fit the shared memory of
/// an A100's block.
template <class A>
struct BaseCut {
  static constexpr int kTile = sizeof(A) == 8 ? 16 : 32;  ///< queries and keys of a tile
  static constexpr int kThreads = kTile * kSpan;
  static constexpr int kOwn = kTile / kSpan;  ///< scores of a row that one thread computes
  static constexpr int kScoreStride = kTile + 1;
};

/// Reduction over the threads of a row, which are neighbours in a warp.
template <class T, class F>
__device__ T row_reduce(T v, F f) {
  for (int d = kSpan / 2; d > 0; d /= 2) v = f(v, __shfl_xor_sync(kAllLanes, v, d));
  return v;
}

/// to[r][stride] = from[r] * scale for the rows of a tile. Rows beyond `count` are zero.
template <class T, class A>
__device__ void load_tile(A* to, int64_t stride, const T* from, int64_t from_stride, int64_t count, int64_t D,
                          A scale) {
  for (int64_t i = threadIdx.x; i < BaseCut<A>::kTile * D; i += blockDim.x) {
    const int64_t r = i / D, c = i % D;
    to[r * stride + c] = r < count ? get(from, r * from_stride + c) * scale : A(0);
  }
}

template <class A>
__device__ A dot(const A* a, const A* b, int64_t D) {
  A sum = 0;
  for (int64_t c = 0; c < D; ++c) sum += a[c] * b[c];
  return sum;
}

/// kDims: most channels of a row that one thread owns: span, span + kSpan, ...
template <class T, class O, int kDims, bool kCap>
__global__ void __launch_bounds__(BaseCut<compute_t<T>>::kThreads)
    attention_forward(O* out, compute_t<T>* lse, AttentionArgs a) {
  using A = compute_t<T>;
  constexpr int kTile = BaseCut<A>::kTile, kScoreStride = BaseCut<A>::kScoreStride;
  const int64_t D = a.head_dim, V = a.value_dim, stride = D + 1, head = blockIdx.y, sample = blockIdx.z;
  const int64_t kv_head = head / (a.heads / a.kv_heads);
  const T* q = static_cast<const T*>(a.q) + sample * a.q_at.rows * a.q_stride + head * D;
  const T* k = static_cast<const T*>(a.k) + sample * a.k_at.rows * a.k_stride + kv_head * D;
  const T* v = static_cast<const T*>(a.v) + sample * a.k_at.rows * a.v_stride + kv_head * V;
  A* qs = shared_memory<A>();
  A *ks = qs + kTile * stride, *vs = ks + kTile * stride, *ps = vs + kTile * stride;
  const int row = threadIdx.x / kSpan, span = threadIdx.x % kSpan;
  const Tiles k_tiles(a.k_at, kTile);
  const Tile qt = Tiles(a.q_at, kTile)[blockIdx.x];
  const Mask mask(a, sample);
  load_tile<T, A>(qs, stride, q + qt.row * a.q_stride, a.q_stride, qt.count, D, score_scale<A>(a));
  A top = -A(INFINITY), sum = 0, acc[kDims];
  for (int i = 0; i < kDims; ++i) acc[i] = 0;
  for (int64_t j = 0; j < k_tiles.total; ++j) {
    const Tile kt = k_tiles[j];
    if (mask.hides(qt, kt)) continue;
    __syncthreads();  // the previous tile's values have been read
    load_tile<T, A>(ks, stride, k + kt.row * a.k_stride, a.k_stride, kt.count, D, A(1));
    load_tile<T, A>(vs, stride, v + kt.row * a.v_stride, a.v_stride, kt.count, V, A(1));
    __syncthreads();
    const int64_t query = qt.at + row;
    const int64_t begin = row < qt.count ? mask.begin(query, kt) : 0,
                  end = row < qt.count ? mask.end(query, kt) : 0;
    constexpr int kOwn = BaseCut<A>::kOwn;
    A score[kOwn], high = top;
    for (int i = 0; i < kOwn; ++i) {
      const int col = span + i * kSpan;
      score[i] = col >= begin && col < end
                     ? capped<kCap>(dot(qs + row * stride, ks + col * stride, D), A(a.soft_cap))
                     : -A(INFINITY);
      high = score[i] > high ? score[i] : high;
    }
    high = row_reduce(high, Max());
    const bool blind = high == -A(INFINITY);  // no key seen yet
    const A fade = blind ? A(1) : exp(top - high);
    A total = 0;
    for (int i = 0; i < kOwn; ++i) {
      const int col = span + i * kSpan;
      A p = score[i] == -A(INFINITY) ? A(0) : exp(score[i] - high);
      total += p;
      if (p != A(0)) p *= A(!a.drop.threshold ? 1.0f : keep_factor(a, sample, head, query, kt.at + col));
      ps[row * kScoreStride + col] = p;
    }
    sum = sum * fade + row_reduce(total, Sum());
    top = high;
    __syncwarp();  // only threads of the same row read its probabilities
    for (int i = 0; i < kDims; ++i) {
      const int64_t c = span + i * kSpan;
      if (c >= V) break;
      A add = 0;
      for (int col = 0; col < kTile; ++col) add += ps[row * kScoreStride + col] * vs[col * stride + c];
      acc[i] = acc[i] * fade + add;
    }
    __syncwarp();
  }
  if (row >= qt.count) return;
  const bool blind = sum == A(0) && top == -A(INFINITY);
  const A inverse = blind ? A(0) : A(1) / sum;
  O* to = out + ((sample * a.q_at.rows + qt.row + row) * a.heads + head) * V;
  for (int i = 0; i < kDims; ++i)
    if (const int64_t c = span + i * kSpan; c < V) put(to, c, acc[i] * inverse);
  if (span == 0)
    lse[(sample * a.heads + head) * a.q_at.rows + qt.row + row] = blind ? -A(INFINITY) : top + log(sum);
}

/// Writes one channel of a row of a gradient.
template <class T>
__device__ void give(const AttentionSink& to, int64_t row, int64_t col, compute_t<T> v) {
  const int64_t at = row * to.stride + col;
  if (to.wide) {
    compute_t<T>* out = static_cast<compute_t<T>*>(to.data);
    out[at] = to.add ? out[at] + v : v;
  } else {
    T* out = static_cast<T*>(to.data);
    put(out, at, to.add ? get(out, at) + v : v);
  }
}

/// Computation shared by both halves of the backward for a pair of tiles: probabilities after dropout, and
/// the gradient of the scores; zero if masked. Queries are scaled.
template <class A, bool kCap>
struct Pair {
  static constexpr int kOwn = BaseCut<A>::kOwn, kScoreStride = BaseCut<A>::kScoreStride;
  A *p, *ds;  ///< (BaseCut<A>::kTile, kScoreStride)
  __device__ void compute(const AttentionArgs& a, int64_t sample, int64_t head, const Mask& mask,
                          const Tile& qt, const Tile& kt, const A* qs, const A* gs, const A* ks, const A* vs,
                          int64_t stride, A lse, A delta) const {
    const int row = threadIdx.x / kSpan, span = threadIdx.x % kSpan;
    const int64_t D = a.head_dim, query = qt.at + row;
    const int64_t begin = row < qt.count ? mask.begin(query, kt) : 0,
                  end = row < qt.count ? mask.end(query, kt) : 0;
    for (int i = 0; i < kOwn; ++i) {
      const int col = span + i * kSpan;
      A dropped = 0, d = 0;
      if (col >= begin && col < end) {
        const A score = dot(qs + row * stride, ks + col * stride, D);
        SoftCapped<A> s{score, A(1)};
        if constexpr (kCap) s = soft_cap(score, A(a.soft_cap));
        const A e = exp(s.value - lse);
        const A factor = A(!a.drop.threshold ? 1.0f : keep_factor(a, sample, head, query, kt.at + col));
        dropped = e * factor;
        d = e * (dot(gs + row * stride, vs + col * stride, a.value_dim) * factor - delta);
        if constexpr (kCap) d *= s.slope;
      }
      p[row * kScoreStride + col] = dropped;
      ds[row * kScoreStride + col] = d;
    }
  }
};

/// Sum over channels of dout * out for the row that this thread shares.
template <class T, class A>
__device__ A row_delta(const A* gs, int64_t stride, const T* out, int64_t V, bool there) {
  const int row = threadIdx.x / kSpan, span = threadIdx.x % kSpan;
  A sum = 0;
  if (there)
    for (int64_t c = span; c < V; c += kSpan) sum += gs[row * stride + c] * get(out, c);
  return row_reduce(sum, Sum());
}

template <class T, int kDims, bool kCap>
__global__ void __launch_bounds__(BaseCut<compute_t<T>>::kThreads)
    attention_backward_q(AttentionSink dq, const T* dout, const T* out, const compute_t<T>* lse,
                         AttentionArgs a) {
  using A = compute_t<T>;
  constexpr int kTile = BaseCut<A>::kTile, kScoreStride = BaseCut<A>::kScoreStride;
  const int64_t D = a.head_dim, V = a.value_dim, stride = D + 1, head = blockIdx.y, sample = blockIdx.z;
  const int64_t kv_head = head / (a.heads / a.kv_heads), row_stride = a.heads * V;
  const T* q = static_cast<const T*>(a.q) + sample * a.q_at.rows * a.q_stride + head * D;
  const T* k = static_cast<const T*>(a.k) + sample * a.k_at.rows * a.k_stride + kv_head * D;
  const T* v = static_cast<const T*>(a.v) + sample * a.k_at.rows * a.v_stride + kv_head * V;
  const int64_t first = sample * a.q_at.rows * row_stride + head * V;
  A* qs = shared_memory<A>();
  A *gs = qs + kTile * stride, *ks = gs + kTile * stride, *vs = ks + kTile * stride,
    *ps = vs + kTile * stride;
  const Pair<A, kCap> pair{ps, ps + kTile * kScoreStride};
  const int row = threadIdx.x / kSpan, span = threadIdx.x % kSpan;
  const Tiles k_tiles(a.k_at, kTile);
  const Tile qt = Tiles(a.q_at, kTile)[blockIdx.x];
  const Mask mask(a, sample);
  const A scale = score_scale<A>(a);
  const bool there = row < qt.count;
  load_tile<T, A>(qs, stride, q + qt.row * a.q_stride, a.q_stride, qt.count, D, scale);
  load_tile<T, A>(gs, stride, dout + first + qt.row * row_stride, row_stride, qt.count, V, A(1));
  __syncthreads();
  const A delta = row_delta<T, A>(gs, stride, out + first + (qt.row + row) * row_stride, V, there);
  const A row_lse = there ? lse[(sample * a.heads + head) * a.q_at.rows + qt.row + row] : A(0);
  A acc[kDims];
  for (int i = 0; i < kDims; ++i) acc[i] = 0;
  for (int64_t j = 0; j < k_tiles.total; ++j) {
    const Tile kt = k_tiles[j];
    if (mask.hides(qt, kt)) continue;
    __syncthreads();
    load_tile<T, A>(ks, stride, k + kt.row * a.k_stride, a.k_stride, kt.count, D, A(1));
    load_tile<T, A>(vs, stride, v + kt.row * a.v_stride, a.v_stride, kt.count, V, A(1));
    __syncthreads();
    pair.compute(a, sample, head, mask, qt, kt, qs, gs, ks, vs, stride, row_lse, delta);
    __syncwarp();
    for (int i = 0; i < kDims; ++i) {
      const int64_t c = span + i * kSpan;
      if (c >= D) break;
      for (int col = 0; col < kTile; ++col)
        acc[i] += pair.ds[row * kScoreStride + col] * ks[col * stride + c];
    }
  }
  if (!there) return;
  for (int i = 0; i < kDims; ++i)
    if (const int64_t c = span + i * kSpan; c < D)
      give<T>(dq, sample * a.q_at.rows + qt.row + row, head * D + c, acc[i] * scale);
}

template <class T, int kDims, bool kCap>
__global__ void __launch_bounds__(BaseCut<compute_t<T>>::kThreads)
    attention_backward_kv(AttentionSink dk, AttentionSink dv, const T* dout, const T* out,
                          const compute_t<T>* lse, AttentionArgs a) {
  using A = compute_t<T>;
  constexpr int kTile = BaseCut<A>::kTile, kScoreStride = BaseCut<A>::kScoreStride;
  const int64_t D = a.head_dim, V = a.value_dim, stride = D + 1, kv_head = blockIdx.y, sample = blockIdx.z;
  const int64_t group = a.heads / a.kv_heads, row_stride = a.heads * V;
  const T* k = static_cast<const T*>(a.k) + sample * a.k_at.rows * a.k_stride + kv_head * D;
  const T* v = static_cast<const T*>(a.v) + sample * a.k_at.rows * a.v_stride + kv_head * V;
  A* qs = shared_memory<A>();
  A *gs = qs + kTile * stride, *ks = gs + kTile * stride, *vs = ks + kTile * stride,
    *ps = vs + kTile * stride;
  const Pair<A, kCap> pair{ps, ps + kTile * kScoreStride};
  const int row = threadIdx.x / kSpan, span = threadIdx.x % kSpan;
  const Tiles q_tiles(a.q_at, kTile);
  const Tile kt = Tiles(a.k_at, kTile)[blockIdx.x];
  const Mask mask(a, sample);
  const A scale = score_scale<A>(a);
  load_tile<T, A>(ks, stride, k + kt.row * a.k_stride, a.k_stride, kt.count, D, A(1));
  load_tile<T, A>(vs, stride, v + kt.row * a.v_stride, a.v_stride, kt.count, V, A(1));
  A acc_k[kDims], acc_v[kDims];
  for (int i = 0; i < kDims; ++i) acc_k[i] = acc_v[i] = 0;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* q = static_cast<const T*>(a.q) + sample * a.q_at.rows * a.q_stride + head * D;
    const int64_t first = sample * a.q_at.rows * row_stride + head * V;
    for (int64_t j = 0; j < q_tiles.total; ++j) {
      const Tile qt = q_tiles[j];
      if (mask.hides(qt, kt)) continue;
      const bool there = row < qt.count;
      __syncthreads();
      load_tile<T, A>(qs, stride, q + qt.row * a.q_stride, a.q_stride, qt.count, D, scale);
      load_tile<T, A>(gs, stride, dout + first + qt.row * row_stride, row_stride, qt.count, V, A(1));
      __syncthreads();
      const A delta = row_delta<T, A>(gs, stride, out + first + (qt.row + row) * row_stride, V, there);
      const A row_lse = there ? lse[(sample * a.heads + head) * a.q_at.rows + qt.row + row] : A(0);
      pair.compute(a, sample, head, mask, qt, kt, qs, gs, ks, vs, stride, row_lse, delta);
      __syncthreads();  // threads of other rows read the columns
      for (int i = 0; i < kDims; ++i) {
        const int64_t c = span + i * kSpan;
        if (c >= D) break;
        for (int r = 0; r < kTile; ++r) {  // `row` is a key here
          if (c < V) acc_v[i] += pair.p[r * kScoreStride + row] * gs[r * stride + c];
          acc_k[i] += pair.ds[r * kScoreStride + row] * qs[r * stride + c];
        }
      }
    }
  }
  if (row >= kt.count) return;
  for (int i = 0; i < kDims; ++i)
    if (const int64_t c = span + i * kSpan; c < D) {
      give<T>(dk, sample * a.k_at.rows + kt.row + row, kv_head * D + c, acc_k[i]);
      if (c < V) give<T>(dv, sample * a.k_at.rows + kt.row + row, kv_head * V + c, acc_v[i]);
    }
}

/// Calls f with the channels that a thread owns and with `true` for soft-capped scores.
template <class F>
void with_dims(const AttentionArgs& a, F&& f) {
  LT_CHECK(a.head_dim <= 256, "attention on a GPU: expected a head dim of at most 256, got {}", a.head_dim);
  with_cap(a.soft_cap, [&]<bool kCap>() {
    if (a.head_dim <= 64) return f.template operator()<64 / kSpan, kCap>();
    if (a.head_dim <= 128) return f.template operator()<128 / kSpan, kCap>();
    f.template operator()<256 / kSpan, kCap>();
  });
}

template <class A>
int64_t shared_bytes(int64_t head_dim, int tiles, int scores) {
  using C = BaseCut<A>;
  return static_cast<int64_t>(sizeof(A)) * C::kTile * (tiles * (head_dim + 1) + scores * C::kScoreStride);
}

template <class A>
dim3 grid_of(const Positions& rows, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(Tiles(rows, BaseCut<A>::kTile).total), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch));
}

/// `others`: true if the other rows that the call reads and writes begin at multiples of 16 bytes.
AttentionKernel kernel_for(Stream& s, DType t, const AttentionArgs& a, bool others) {
  static const int capability = device_info().capability;
  const auto even = [](const Positions& p) { return p.rows == p.split || p.rows == 2 * p.split; };
  AttentionTraits traits;
  traits.type = t, traits.head_dim = a.head_dim, traits.value_dim = a.value_dim,
  traits.capability = capability;
  traits.dropout = a.drop.threshold != 0;
  traits.soft_cap = a.soft_cap > 0;
  traits.aligned =
      others && aligned({a.q, a.k, a.v}) && a.q_stride % 8 == 0 && a.k_stride % 8 == 0 && a.v_stride % 8 == 0;
  traits.even_runs = even(a.q_at) && even(a.k_at);
  const AttentionKernel kernel = choose_attention(traits);
  if (kernel != AttentionKernel::wgmma) return kernel;
  bool news = false;
  const std::string why = wgmma_unusable(s, t, a.head_dim, &news);
  if (why.empty()) return kernel;
  if (attention_is_forced())
    fail(ExitCode::usage,
         "LTRAIN_ATTENTION=wgmma: these kernels are not used, because {}; LTRAIN_ATTENTION=mma works", why);
  if (news)  // otherwise the start of the run has printed it
    fmt::print(stderr,
               "ltrain: attention of {} with head dim {}: the wgmma kernels are not used, because {}\n",
               dtype_name(t), a.head_dim, why);
  return AttentionKernel::mma;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void attention_forward_cuda(Stream& s, DType t, bool wide_out, void* out, void* lse, AttentionArgs a) {
  if (attention_forward_by_cudnn(s, t, wide_out, out, lse, a)) return;
  const AttentionKernel kernel = kernel_for(s, t, a, aligned({out}));
  if (kernel == AttentionKernel::wgmma) return attention_wgmma_forward(s, t, wide_out, out, lse, a);
  if (kernel == AttentionKernel::mma) return attention_mma_forward(s, t, wide_out, out, lse, a);
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const dim3 grid = grid_of<A>(a.q_at, a.heads, a.batch);
    constexpr int kThreads = BaseCut<A>::kThreads;
    with_dims(a, [&]<int kDims, bool kCap>() {
      const int64_t shared = shared_bytes<A>(a.head_dim, 3, 1);
      if (wide_out) {
        launch(s, grid, kThreads, shared, cuda::attention_forward<T, A, kDims, kCap>, static_cast<A*>(out),
               static_cast<A*>(lse), a);
      } else {
        launch(s, grid, kThreads, shared, cuda::attention_forward<T, T, kDims, kCap>, static_cast<T*>(out),
               static_cast<A*>(lse), a);
      }
    });
  });
}

void attention_backward_cuda(Stream& s, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv,
                             const void* dout, const void* out, const void* lse, AttentionArgs a) {
  if (attention_backward_by_cudnn(s, t, dq, dk, dv, dout, out, lse, a)) return;
  const bool even_rows = aligned({dout, dq.data, dk.data, dv.data}) && dq.stride % 8 == 0 &&
                         dk.stride % 8 == 0 && dv.stride % 8 == 0;
  const AttentionKernel kernel = kernel_for(s, t, a, even_rows);
  if (kernel == AttentionKernel::wgmma) return attention_wgmma_backward(s, t, dq, dk, dv, dout, out, lse, a);
  if (kernel == AttentionKernel::mma) return attention_mma_backward(s, t, dq, dk, dv, dout, out, lse, a);
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    const T *g = static_cast<const T*>(dout), *o = static_cast<const T*>(out);
    const A* l = static_cast<const A*>(lse);
    constexpr int kThreads = BaseCut<A>::kThreads;
    with_dims(a, [&]<int kDims, bool kCap>() {
      const int64_t shared = shared_bytes<A>(a.head_dim, 4, 2);
      launch(s, grid_of<A>(a.q_at, a.heads, a.batch), kThreads, shared,
             cuda::attention_backward_q<T, kDims, kCap>, dq, g, o, l, a);
      launch(s, grid_of<A>(a.k_at, a.kv_heads, a.batch), kThreads, shared,
             cuda::attention_backward_kv<T, kDims, kCap>, dk, dv, g, o, l, a);
    });
  });
}

}  // namespace ltrain
