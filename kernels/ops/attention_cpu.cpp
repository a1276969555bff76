// One task is one (sample, key-value head): its keys and values are packed once and used by all heads of the
// group.
#include <cmath>
#include <limits>

#include "kernels/core/micro_gemm.h"
#include "kernels/core/parallel_for.h"
#include "kernels/core/vector_math.h"
#include "kernels/ops/attention.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kBlock = 64;  // queries and keys a tile

template <class T, class A>
void load_rows(A* to, const T* from, int64_t rows, int64_t cols, int64_t stride, A scale) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) to[r * cols + c] = get(from, r * stride + c) * scale;
}

/// to[c][kBlock] = from[r][c] for `rows` <= kBlock rows; the rest of each line is zero.
template <class T, class A>
void load_transposed(A* to, const T* from, int64_t rows, int64_t cols, int64_t stride) {
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < kBlock; ++r) to[c * kBlock + r] = r < rows ? get(from, r * stride + c) : A(0);
}

/// factor[j] = 0 or 1/(1-p) for keys k0 + j of one query.
template <class A>
void dropout_keys(A* factor, const DropoutArgs& d, const AttentionShape& a, int64_t sample, int64_t head,
                  int64_t query, int64_t k0, int64_t keys) {
  const uint64_t calls = static_cast<uint64_t>((a.seq + 3) / 4);
  const uint64_t heads = static_cast<uint64_t>(a.all_heads ? a.all_heads : a.heads);
  const uint64_t row = (static_cast<uint64_t>(sample) * heads + a.first_head + head) * a.seq + query;
  for (int64_t j = 0; j < keys; j += 4) {  // k0 is a multiple of four
    const Philox4 r = philox(d.seed, d.stream, row * calls + static_cast<uint64_t>(k0 + j) / 4);
    for (int64_t i = 0; i < 4 && j + i < keys; ++i) factor[j + i] = r.v[i] >= d.threshold ? A(d.scale) : A(0);
  }
}

template <class T>
struct Head {
  using A = compute_t<T>;
  const AttentionShape& a;
  int64_t sample, kv_head;
  int64_t width, group;
  const T *q, *k, *v;  // row 0 of this sample

  Head(const AttentionShape& shape, const T* qkv, int64_t task)
      : a(shape),
        sample(task / shape.kv_heads),
        kv_head(task % shape.kv_heads),
        width(shape.qkv_width()),
        group(shape.heads / shape.kv_heads) {
    const T* row = qkv + sample * a.seq * width;
    q = row;
    k = row + (a.heads + kv_head) * a.head_dim;
    v = row + (a.heads + a.kv_heads + kv_head) * a.head_dim;
  }
};

template <class T>
void forward(T* out, compute_t<T>* lse, const T* qkv, const AttentionShape& a, const DropoutArgs& drop) {
  using A = compute_t<T>;
  const int64_t D = a.head_dim, S = a.seq, blocks = (S + kBlock - 1) / kBlock, padded = blocks * kBlock;
  const A scale = A(1) / std::sqrt(A(D));
  parallel_tasks(a.batch * a.kv_heads, [&](int64_t task) {
    const Head<T> hd(a, qkv, task);
    A* keys = scratch<A>(4, padded * D);    // per block: (D, kBlock)
    A* values = scratch<A>(5, padded * D);  // (S, D)
    A* tile = scratch<A>(6, 2 * kBlock * D + 2 * kBlock * kBlock);
    A *qb = tile, *ob = tile + kBlock * D, *scores = ob + kBlock * D, *factor = scores + kBlock * kBlock;
    for (int64_t j = 0; j < blocks; ++j)
      load_transposed(keys + j * kBlock * D, hd.k + j * kBlock * hd.width, std::min(kBlock, S - j * kBlock),
                      D, hd.width);
    load_rows(values, hd.v, S, D, hd.width, A(1));
    for (int64_t g = 0; g < hd.group; ++g) {
      const int64_t head = hd.kv_head * hd.group + g;
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t q0 = i * kBlock, rows = std::min(kBlock, S - q0);
        load_rows(qb, hd.q + q0 * hd.width + head * D, rows, D, hd.width, scale);
        A top[kBlock], sum[kBlock];
        for (int64_t r = 0; r < rows; ++r) top[r] = -std::numeric_limits<A>::infinity(), sum[r] = 0;
        for (int64_t x = 0; x < rows * D; ++x) ob[x] = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t k0 = j * kBlock, cols = std::min(kBlock, S - k0);
          micro_gemm<A>(rows, kBlock, D, qb, D, 1, keys + k0 * D, kBlock, scores, kBlock, false);
          for (int64_t r = 0; r < rows; ++r) {
            A* row = scores + r * kBlock;
            const int64_t seen = std::min(cols, q0 + r - k0 + 1);  // keys that this query may look at
            A high = top[r];
#pragma omp simd reduction(max : high)
            for (int64_t c = 0; c < seen; ++c) high = row[c] > high ? row[c] : high;
            const A fade = fast_exp(top[r] - high);
            A total = 0;
#pragma omp simd reduction(+ : total)
            for (int64_t c = 0; c < seen; ++c) {
              row[c] = fast_exp(row[c] - high);
              total += row[c];
            }
            for (int64_t c = seen; c < kBlock; ++c) row[c] = 0;
            top[r] = high;
            sum[r] = sum[r] * fade + total;
            if (drop.threshold) {
              dropout_keys(factor, drop, a, drop.sample_index[hd.sample], head, q0 + r, k0, seen);
              for (int64_t c = 0; c < seen; ++c) row[c] *= factor[c];
            }
            if (j > 0)
              for (int64_t c = 0; c < D; ++c) ob[r * D + c] *= fade;
          }
          micro_gemm<A>(rows, D, cols, scores, kBlock, 1, values + k0 * D, D, ob, D, true);
        }
        for (int64_t r = 0; r < rows; ++r) {
          const A inverse = A(1) / sum[r];
          T* to = out + ((hd.sample * S + q0 + r) * a.heads + head) * D;
          for (int64_t c = 0; c < D; ++c) put(to, c, ob[r * D + c] * inverse);
          lse[(hd.sample * a.heads + head) * S + q0 + r] = top[r] + std::log(sum[r]);
        }
      }
    }
  });
}

template <class T>
void backward(T* dqkv, const T* dout, const T* qkv, const T* out, const compute_t<T>* lse,
              const AttentionShape& a, const DropoutArgs& drop) {
  using A = compute_t<T>;
  const int64_t D = a.head_dim, S = a.seq, blocks = (S + kBlock - 1) / kBlock, padded = blocks * kBlock;
  const A scale = A(1) / std::sqrt(A(D));
  parallel_tasks(a.batch * a.kv_heads, [&](int64_t task) {
    const Head<T> hd(a, qkv, task);
    A* dk = scratch<A>(4, padded * D);
    A* dv = scratch<A>(5, padded * D);
    A* tile = scratch<A>(
        6, 2 * kBlock * D + 2 * kBlock * kBlock);  // keys and values of one block, transposed; P; dS
    A *kt = tile, *vt = tile + kBlock * D, *p = vt + kBlock * D, *ds = p + kBlock * kBlock;
    A* q = scratch<A>(7, padded * D);
    A* go = scratch<A>(8, padded * D);
    A* dq = scratch<A>(9, padded * D);
    A* k = scratch<A>(10, padded * D);
    A* delta = scratch<A>(11, padded);
    load_rows(k, hd.k, S, D, hd.width, A(1));
    for (int64_t x = 0; x < S * D; ++x) dk[x] = 0, dv[x] = 0;
    for (int64_t g = 0; g < hd.group; ++g) {
      const int64_t head = hd.kv_head * hd.group + g;
      const int64_t out_stride = a.heads * D, out_first = (hd.sample * S * a.heads + head) * D;
      load_rows(q, hd.q + head * D, S, D, hd.width, scale);
      load_rows(go, dout + out_first, S, D, out_stride, A(1));
      for (int64_t r = 0; r < S; ++r) {
        A total = 0;
        const T* o = out + out_first + r * out_stride;
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < D; ++c) total += go[r * D + c] * get(o, c);
        delta[r] = total;
      }
      for (int64_t x = 0; x < S * D; ++x) dq[x] = 0;
      const A* row_lse = lse + (hd.sample * a.heads + head) * S;
      for (int64_t j = 0; j < blocks; ++j) {
        const int64_t k0 = j * kBlock, cols = std::min(kBlock, S - k0);
        load_transposed(kt, hd.k + k0 * hd.width, cols, D, hd.width);
        load_transposed(vt, hd.v + k0 * hd.width, cols, D, hd.width);
        for (int64_t i = j; i < blocks; ++i) {
          const int64_t q0 = i * kBlock, rows = std::min(kBlock, S - q0);
          micro_gemm<A>(rows, kBlock, D, q + q0 * D, D, 1, kt, kBlock, p, kBlock, false);
          micro_gemm<A>(rows, kBlock, D, go + q0 * D, D, 1, vt, kBlock, ds, kBlock, false);
          for (int64_t r = 0; r < rows; ++r) {
            A *pr = p + r * kBlock, *dr = ds + r * kBlock;
            const int64_t seen = std::min(cols, q0 + r - k0 + 1);
            const A l = row_lse[q0 + r], dl = delta[q0 + r];
            if (drop.threshold) {
              A factor[kBlock];
              dropout_keys(factor, drop, a, drop.sample_index[hd.sample], head, q0 + r, k0, seen);
              for (int64_t c = 0; c < seen; ++c) {
                const A e = fast_exp(pr[c] - l);
                pr[c] = e * factor[c];
                dr[c] = e * (dr[c] * factor[c] - dl);
              }
            } else {
#pragma omp simd
              for (int64_t c = 0; c < seen; ++c) {
                const A e = fast_exp(pr[c] - l);
                pr[c] = e;
                dr[c] = e * (dr[c] - dl);
              }
            }
            for (int64_t c = std::max<int64_t>(seen, 0); c < kBlock; ++c) pr[c] = 0, dr[c] = 0;
          }
          // dV += P^T dO;  dK += dS^T Q (Q holds the scale);  dQ += dS K
          micro_gemm<A>(cols, D, rows, p, 1, kBlock, go + q0 * D, D, dv + k0 * D, D, true);
          micro_gemm<A>(cols, D, rows, ds, 1, kBlock, q + q0 * D, D, dk + k0 * D, D, true);
          micro_gemm<A>(rows, D, cols, ds, kBlock, 1, k + k0 * D, D, dq + q0 * D, D, true);
        }
      }
      for (int64_t r = 0; r < S; ++r) {
        T* to = dqkv + (hd.sample * S + r) * hd.width + head * D;
        for (int64_t c = 0; c < D; ++c) put(to, c, dq[r * D + c] * scale);
      }
    }
    for (int64_t r = 0; r < S; ++r) {
      T* to = dqkv + (hd.sample * S + r) * hd.width + (a.heads + hd.kv_head) * D;
      for (int64_t c = 0; c < D; ++c) put(to, c, dk[r * D + c]);
      to += a.kv_heads * D;
      for (int64_t c = 0; c < D; ++c) put(to, c, dv[r * D + c]);
    }
  });
}

}  // namespace

void attention_forward_cpu(DType t, void* out, void* lse, const void* qkv, AttentionShape shape,
                           DropoutArgs drop) {
  dispatch_float(t, [&]<class T>() {
    forward<T>(static_cast<T*>(out), static_cast<compute_t<T>*>(lse), static_cast<const T*>(qkv), shape,
               drop);
  });
}

void attention_backward_cpu(DType t, void* dqkv, const void* dout, const void* qkv, const void* out,
                            const void* lse, AttentionShape shape, DropoutArgs drop) {
  dispatch_float(t, [&]<class T>() {
    backward<T>(static_cast<T*>(dqkv), static_cast<const T*>(dout), static_cast<const T*>(qkv),
                static_cast<const T*>(out), static_cast<const compute_t<T>*>(lse), shape, drop);
  });
}

}  // namespace ltrain::LT_ISA
