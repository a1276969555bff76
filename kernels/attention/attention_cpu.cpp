// One task is one (sample, key-value head): its keys and values are packed once and used by all heads of the
// group. Tiles of queries and keys have consecutive positions, so that one comparison says if a pair of tiles
// is masked.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_tiles.h"
#include "kernels/loss/soft_cap_cpu.h"
#include "kernels/tensor/micro_gemm.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kBlock = 64;  // queries and keys of a tile

template <class A>
void soft_cap_scores(A* scores, int64_t begin, int64_t end, A cap) {
#pragma omp simd
  for (int64_t c = begin; c < end; ++c) scores[c] = soft_cap(scores[c], cap).value;
}

template <class T, class A>
void load_rows(A* to, const T* from, int64_t rows, int64_t cols, int64_t stride, A scale) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) to[r * cols + c] = get(from, r * stride + c) * scale;
}

/// to[c][kBlock] = from[r][c] for `rows` <= kBlock rows; the rest of each line of `to` is zero.
template <class T, class A>
void load_transposed(A* to, const T* from, int64_t rows, int64_t cols, int64_t stride) {
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < kBlock; ++r) to[c * kBlock + r] = r < rows ? get(from, r * stride + c) : A(0);
}

/// factor[j] = 0 or 1/(1-p) for the keys at positions k0 + j, j in [begin, end), of one query.
template <class A>
void dropout_keys(A* factor, const AttentionArgs& a, int64_t sample, int64_t head, int64_t query, int64_t k0,
                  int64_t begin, int64_t end) {
  const DropoutArgs& d = a.drop;
  const uint64_t call = dropout_call(a, sample, head, query);
  int64_t j = begin;
  if (const int64_t before = (k0 + begin) & 3) {  // one call serves four keys
    const Philox4 r = philox(d.seed, d.stream, call + static_cast<uint64_t>(k0 + begin) / 4);
    for (int64_t i = before; i < 4 && j < end; ++i, ++j)
      factor[j] = r.v[i] >= d.threshold ? A(d.scale) : A(0);
  }
  for (; j < end; j += 4) {
    const Philox4 r = philox(d.seed, d.stream, call + static_cast<uint64_t>(k0 + j) / 4);
    for (int64_t i = 0; i < 4 && j + i < end; ++i) factor[j + i] = r.v[i] >= d.threshold ? A(d.scale) : A(0);
  }
}

/// Pointers to the q, k and v that one task reads: row 0 of its sample, its key-value head.
template <class T>
struct Head {
  int64_t sample, kv_head, group;
  const T *q, *k, *v;  // q: head 0 of the sample

  Head(const AttentionArgs& a, int64_t task)
      : sample(task / a.kv_heads), kv_head(task % a.kv_heads), group(a.heads / a.kv_heads) {
    q = static_cast<const T*>(a.q) + sample * a.q_at.rows * a.q_stride;
    k = static_cast<const T*>(a.k) + sample * a.k_at.rows * a.k_stride + kv_head * a.head_dim;
    v = static_cast<const T*>(a.v) + sample * a.k_at.rows * a.v_stride + kv_head * a.value_dim;
  }
};

/// One query per sample, as in generation: keys and values are read once, without packing.
template <class T, class O>
void forward_one_query(O* out, compute_t<T>* lse, const AttentionArgs& a) {
  using A = compute_t<T>;
  const int64_t D = a.head_dim, V = a.value_dim, query = a.q_at.at(0);
  const Tiles k_tiles(a.k_at, kBlock);
  const A scale = score_scale<A>(a), cap = A(a.soft_cap);
  // elements of keys; fewer do not pay for threads
  const bool worth = a.batch * a.kv_heads * a.k_at.rows * D >= 1 << 16;
  parallel_tasks(
      a.batch * a.kv_heads,
      [&](int64_t task) {
        const Head<T> hd(a, task);
        const Mask mask(a, hd.sample);
        A* scores = scratch<A>(4, hd.group * a.k_at.rows);  // one row for each head of the group
        A* q = scratch<A>(5, hd.group * D);
        A* sums = scratch<A>(6, hd.group * V);
        load_rows(q, hd.q + hd.kv_head * hd.group * D, hd.group, D, D, scale);
        for (int64_t j = 0; j < k_tiles.total; ++j) {
          const Tile kt = k_tiles[j];
          for (int64_t c = mask.begin(query, kt), end = mask.end(query, kt); c < end; ++c) {
            const T* key = hd.k + (kt.row + c) * a.k_stride;
            for (int64_t g = 0; g < hd.group; ++g) {
              A dot = 0;
#pragma omp simd reduction(+ : dot)
              for (int64_t d = 0; d < D; ++d) dot += q[g * D + d] * get(key, d);
              scores[g * a.k_at.rows + kt.row + c] = dot;
            }
          }
        }
        for (int64_t g = 0; g < hd.group; ++g) {
          A *score = scores + g * a.k_at.rows, *sum = sums + g * V;
          const auto each_run = [&](const auto& body) {
            for (int64_t j = 0; j < k_tiles.total; ++j) {
              const Tile kt = k_tiles[j];
              const int64_t begin = mask.begin(query, kt), end = mask.end(query, kt);
              if (begin < end) body(kt.row + begin, kt.row + end);
            }
          };
          if (cap > 0) each_run([&](int64_t begin, int64_t end) { soft_cap_scores(score, begin, end, cap); });
          A top = -std::numeric_limits<A>::infinity(), total = 0;
          each_run([&](int64_t begin, int64_t end) {
            for (int64_t c = begin; c < end; ++c) top = score[c] > top ? score[c] : top;
          });
          for (int64_t d = 0; d < V; ++d) sum[d] = 0;
          each_run([&](int64_t begin, int64_t end) {
            A part = 0;
#pragma omp simd reduction(+ : part)
            for (int64_t c = begin; c < end; ++c) {
              score[c] = fast_exp(score[c] - top);
              part += score[c];
            }
            total += part;
            for (int64_t c = begin; c < end; ++c) {
              const T* value = hd.v + c * a.v_stride;
              const A p = score[c];
#pragma omp simd
              for (int64_t d = 0; d < V; ++d) sum[d] += p * get(value, d);
            }
          });
          const int64_t head = hd.kv_head * hd.group + g;
          const A inverse = total > 0 ? A(1) / total : A(0);
          for (int64_t d = 0; d < V; ++d) put(out, (hd.sample * a.heads + head) * V + d, sum[d] * inverse);
          lse[hd.sample * a.heads + head] = total > 0 ? top + std::log(total) : top;
        }
      },
      worth);
}

template <class T, class O>
void forward(O* out, compute_t<T>* lse, const AttentionArgs& a) {
  using A = compute_t<T>;
  if (a.q_at.rows == 1 && !a.drop.threshold) return forward_one_query<T>(out, lse, a);
  const int64_t D = a.head_dim, V = a.value_dim, rows_q = a.q_at.rows;
  const Tiles q_tiles(a.q_at, kBlock), k_tiles(a.k_at, kBlock);
  const A scale = score_scale<A>(a), cap = A(a.soft_cap);
  parallel_tasks(a.batch * a.kv_heads, [&](int64_t task) {
    const Head<T> hd(a, task);
    const Mask mask(a, hd.sample);
    A* keys = scratch<A>(4, k_tiles.total * kBlock * D);  // for each tile: (D, kBlock)
    A* values = scratch<A>(5, a.k_at.rows * V);
    A* work = scratch<A>(6, kBlock * (D + V) + 2 * kBlock * kBlock);
    A *qb = work, *ob = work + kBlock * D, *scores = ob + kBlock * V, *factor = scores + kBlock * kBlock;
    for (int64_t j = 0; j < k_tiles.total; ++j) {
      const Tile kt = k_tiles[j];
      load_transposed(keys + j * kBlock * D, hd.k + kt.row * a.k_stride, kt.count, D, a.k_stride);
    }
    load_rows(values, hd.v, a.k_at.rows, V, a.v_stride, A(1));
    for (int64_t g = 0; g < hd.group; ++g) {
      const int64_t head = hd.kv_head * hd.group + g;
      for (int64_t i = 0; i < q_tiles.total; ++i) {
        const Tile qt = q_tiles[i];
        const int64_t rows = qt.count;
        load_rows(qb, hd.q + qt.row * a.q_stride + head * D, rows, D, a.q_stride, scale);
        A top[kBlock], sum[kBlock];
        for (int64_t r = 0; r < rows; ++r) top[r] = -std::numeric_limits<A>::infinity(), sum[r] = 0;
        for (int64_t x = 0; x < rows * V; ++x) ob[x] = 0;
        bool first = true;
        for (int64_t j = 0; j < k_tiles.total; ++j) {
          const Tile kt = k_tiles[j];
          if (mask.hides(qt, kt)) continue;
          micro_gemm<A>(rows, kBlock, D, qb, D, 1, keys + j * kBlock * D, kBlock, scores, kBlock, false);
          for (int64_t r = 0; r < rows; ++r) {
            A* row = scores + r * kBlock;
            const int64_t begin = mask.begin(qt.at + r, kt), end = mask.end(qt.at + r, kt);
            if (end <= begin) {
              for (int64_t c = 0; c < kBlock; ++c) row[c] = 0;
              continue;
            }
            if (cap > 0) soft_cap_scores(row, begin, end, cap);
            A high = top[r];
#pragma omp simd reduction(max : high)
            for (int64_t c = begin; c < end; ++c) high = row[c] > high ? row[c] : high;
            const A fade = fast_exp(top[r] - high);
            A total = 0;
#pragma omp simd reduction(+ : total)
            for (int64_t c = begin; c < end; ++c) {
              row[c] = fast_exp(row[c] - high);
              total += row[c];
            }
            for (int64_t c = 0; c < begin; ++c) row[c] = 0;
            for (int64_t c = end; c < kBlock; ++c) row[c] = 0;
            top[r] = high;
            sum[r] = sum[r] * fade + total;
            if (a.drop.threshold) {
              dropout_keys(factor, a, hd.sample, head, qt.at + r, kt.at, begin, end);
              for (int64_t c = begin; c < end; ++c) row[c] *= factor[c];
            }
            if (!first)
              for (int64_t c = 0; c < V; ++c) ob[r * V + c] *= fade;
          }
          micro_gemm<A>(rows, V, kt.count, scores, kBlock, 1, values + kt.row * V, V, ob, V, true);
          first = false;
        }
        for (int64_t r = 0; r < rows; ++r) {
          const bool blind = top[r] == -std::numeric_limits<A>::infinity() && sum[r] == 0;
          const A inverse = blind ? A(0) : A(1) / sum[r];
          O* to = out + ((hd.sample * rows_q + qt.row + r) * a.heads + head) * V;
          for (int64_t c = 0; c < V; ++c) put(to, c, ob[r * V + c] * inverse);
          lse[(hd.sample * a.heads + head) * rows_q + qt.row + r] =
              blind ? -std::numeric_limits<A>::infinity() : top[r] + std::log(sum[r]);
        }
      }
    }
  });
}

/// Stores `rows` rows of `from` into a gradient, from row `row` and column `col` on.
template <class T, class A>
void store(const AttentionSink& to, int64_t row, int64_t col, const A* from, int64_t rows, int64_t cols,
           A scale) {
  const auto write = [&](auto* base) {
    for (int64_t r = 0; r < rows; ++r) {
      auto* out = base + (row + r) * to.stride + col;
      const A* in = from + r * cols;
      if (to.add) {
        for (int64_t c = 0; c < cols; ++c) put(out, c, get(out, c) + in[c] * scale);
      } else {
        for (int64_t c = 0; c < cols; ++c) put(out, c, in[c] * scale);
      }
    }
  };
  if (to.wide) {
    write(static_cast<A*>(to.data));
  } else {
    write(static_cast<T*>(to.data));
  }
}

template <class T>
void backward(const AttentionSink& to_q, const AttentionSink& to_k, const AttentionSink& to_v, const T* dout,
              const T* out, const compute_t<T>* lse, const AttentionArgs& a) {
  using A = compute_t<T>;
  const int64_t D = a.head_dim, V = a.value_dim, rows_q = a.q_at.rows, rows_k = a.k_at.rows;
  const Tiles q_tiles(a.q_at, kBlock), k_tiles(a.k_at, kBlock);
  const A scale = score_scale<A>(a), cap = A(a.soft_cap);
  parallel_tasks(a.batch * a.kv_heads, [&](int64_t task) {
    const Head<T> hd(a, task);
    const Mask mask(a, hd.sample);
    A* dk = scratch<A>(4, rows_k * D);
    A* dv = scratch<A>(5, rows_k * V);
    // Keys and values of one tile, transposed; P; dS.
    A* work = scratch<A>(6, kBlock * (D + V) + 2 * kBlock * kBlock);
    A *key_t = work, *value_t = work + kBlock * D, *p = value_t + kBlock * V, *ds = p + kBlock * kBlock;
    A* q = scratch<A>(7, rows_q * D);
    A* go = scratch<A>(8, rows_q * V);
    A* dq = scratch<A>(9, rows_q * D);
    A* k = scratch<A>(10, rows_k * D);
    A* delta = scratch<A>(11, rows_q);
    load_rows(k, hd.k, rows_k, D, a.k_stride, A(1));
    std::fill_n(dk, rows_k * D, A(0));
    std::fill_n(dv, rows_k * V, A(0));
    for (int64_t g = 0; g < hd.group; ++g) {
      const int64_t head = hd.kv_head * hd.group + g;
      const int64_t out_stride = a.heads * V, out_first = (hd.sample * rows_q * a.heads + head) * V;
      load_rows(q, hd.q + head * D, rows_q, D, a.q_stride, scale);
      load_rows(go, dout + out_first, rows_q, V, out_stride, A(1));
      for (int64_t r = 0; r < rows_q; ++r) {
        A total = 0;
        const T* o = out + out_first + r * out_stride;
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < V; ++c) total += go[r * V + c] * get(o, c);
        delta[r] = total;
      }
      for (int64_t x = 0; x < rows_q * D; ++x) dq[x] = 0;
      const A* row_lse = lse + (hd.sample * a.heads + head) * rows_q;
      for (int64_t j = 0; j < k_tiles.total; ++j) {
        const Tile kt = k_tiles[j];
        bool loaded = false;
        for (int64_t i = 0; i < q_tiles.total; ++i) {
          const Tile qt = q_tiles[i];
          if (mask.hides(qt, kt)) continue;
          if (!loaded) {
            load_transposed(key_t, hd.k + kt.row * a.k_stride, kt.count, D, a.k_stride);
            load_transposed(value_t, hd.v + kt.row * a.v_stride, kt.count, V, a.v_stride);
            loaded = true;
          }
          const int64_t rows = qt.count, q0 = qt.row * D, k0 = kt.row * D, g0 = qt.row * V;
          micro_gemm<A>(rows, kBlock, D, q + q0, D, 1, key_t, kBlock, p, kBlock, false);
          micro_gemm<A>(rows, kBlock, V, go + g0, V, 1, value_t, kBlock, ds, kBlock, false);
          for (int64_t r = 0; r < rows; ++r) {
            A *pr = p + r * kBlock, *dr = ds + r * kBlock;
            const int64_t begin = mask.begin(qt.at + r, kt), end = mask.end(qt.at + r, kt);
            const A l = row_lse[qt.row + r], dl = delta[qt.row + r];
            A slope[kBlock];
            if (cap > 0) {
#pragma omp simd
              for (int64_t c = begin; c < end; ++c) {
                const SoftCapped<A> s = soft_cap(pr[c], cap);
                pr[c] = s.value;
                slope[c] = s.slope;
              }
            }
            if (a.drop.threshold && begin < end) {
              A factor[kBlock];
              dropout_keys(factor, a, hd.sample, head, qt.at + r, kt.at, begin, end);
              for (int64_t c = begin; c < end; ++c) {
                const A e = fast_exp(pr[c] - l);
                pr[c] = e * factor[c];
                dr[c] = e * (dr[c] * factor[c] - dl);
              }
            } else {
#pragma omp simd
              for (int64_t c = begin; c < end; ++c) {
                const A e = fast_exp(pr[c] - l);
                pr[c] = e;
                dr[c] = e * (dr[c] - dl);
              }
            }
            if (cap > 0)
              for (int64_t c = begin; c < end; ++c) dr[c] *= slope[c];
            for (int64_t c = 0; c < std::min(begin, kBlock); ++c) pr[c] = 0, dr[c] = 0;
            for (int64_t c = std::max<int64_t>(end, 0); c < kBlock; ++c) pr[c] = 0, dr[c] = 0;
          }
          // dV += P^T dO;  dK += dS^T Q (Q holds the scale);  dQ += dS K
          micro_gemm<A>(kt.count, V, rows, p, 1, kBlock, go + g0, V, dv + kt.row * V, V, true);
          micro_gemm<A>(kt.count, D, rows, ds, 1, kBlock, q + q0, D, dk + k0, D, true);
          micro_gemm<A>(rows, D, kt.count, ds, kBlock, 1, k + k0, D, dq + q0, D, true);
        }
      }
      store<T>(to_q, hd.sample * rows_q, head * D, dq, rows_q, D, scale);
    }
    store<T>(to_k, hd.sample * rows_k, hd.kv_head * D, dk, rows_k, D, A(1));
    store<T>(to_v, hd.sample * rows_k, hd.kv_head * V, dv, rows_k, V, A(1));
  });
}

}  // namespace

void attention_forward_cpu(DType t, bool wide_out, void* out, void* lse, AttentionArgs args) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    if (wide_out) {
      forward<T>(static_cast<A*>(out), static_cast<A*>(lse), args);
    } else {
      forward<T>(static_cast<T*>(out), static_cast<A*>(lse), args);
    }
  });
}

void attention_backward_cpu(DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv, const void* dout,
                            const void* out, const void* lse, AttentionArgs args) {
  dispatch_float(t, [&]<class T>() {
    backward<T>(dq, dk, dv, static_cast<const T*>(dout), static_cast<const T*>(out),
                static_cast<const compute_t<T>*>(lse), args);
  });
}

}  // namespace ltrain::LT_ISA
