// Attention over parts of a sequence: every block against a score-by-score reference in double, and the
// blocks of a cut sequence, merged, against the whole.
#include "kernels/attention/attention.h"
#include "kernels/attention/merge_attention.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct BlockCase {
  AttentionShape shape;
  double dropout = 0;
  std::vector<int32_t> documents;  // (batch, seq) or empty
  std::vector<int64_t> samples;
};

BlockCase make_case(const AttentionShape& shape, double dropout, bool documents) {
  BlockCase c{shape, dropout, {}, {}};
  for (int64_t b = 0; b < shape.batch; ++b) {
    c.samples.push_back(77 * b + 5);
    int32_t start = 0;
    for (int64_t t = 0; documents && t < shape.seq; ++t) {
      if (philox(3, 4, static_cast<uint64_t>(b * shape.seq + t)).v[0] % 7 == 0)
        start = static_cast<int32_t>(t);
      c.documents.push_back(start);
    }
  }
  return c;
}

/// The whole sequence in double. q, k, v, dout: (batch, seq, heads, head_dim).
struct Whole {
  BlockCase c;
  std::vector<double> q, k, v, dout;

  explicit Whole(const BlockCase& from) : c(from) {
    const AttentionShape& a = c.shape;
    const auto fill = [&](int64_t heads, uint64_t stream) {
      std::vector<double> x(a.batch * a.seq * heads * a.head_dim);
      for (size_t i = 0; i < x.size(); ++i) x[i] = random_value(stream, static_cast<int64_t>(i), 1.5);
      return x;
    };
    q = fill(a.heads, 31), k = fill(a.kv_heads, 32), v = fill(a.kv_heads, 33), dout = fill(a.heads, 34);
  }
  int64_t at(int64_t b, int64_t t, int64_t heads, int64_t h) const {
    return ((b * c.shape.seq + t) * heads + h) * c.shape.head_dim;
  }
  int64_t kv(int64_t b, int64_t t, int64_t h) const {
    return at(b, t, c.shape.kv_heads, h / (c.shape.heads / c.shape.kv_heads));
  }
  bool sees(int64_t b, int64_t query, int64_t key) const {
    return key <= query && (c.shape.window == 0 || key > query - c.shape.window) &&
           (c.documents.empty() || key >= c.documents[b * c.shape.seq + query]);
  }
  double factor(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (c.dropout == 0) return 1;
    const AttentionShape& a = c.shape;
    const int64_t all = a.all_heads ? a.all_heads : a.heads;
    const uint64_t row = (static_cast<uint64_t>(c.samples[b]) * all + a.first_head + h) * a.seq + query;
    const bool keep = dropout_keep(11, 22, row * static_cast<uint64_t>((a.seq + 3) / 4) * 4 + key,
                                   dropout_threshold(c.dropout));
    return keep ? static_cast<float>(1 / (1 - c.dropout)) : 0;
  }
  double score(int64_t b, int64_t h, int64_t query, int64_t key) const {
    double s = 0;
    for (int64_t i = 0; i < c.shape.head_dim; ++i)
      s += q[at(b, query, c.shape.heads, h) + i] * k[kv(b, key, h) + i];
    return s / std::sqrt(static_cast<double>(c.shape.head_dim));
  }
  /// Over the keys of `keys` alone: lse, and out (head_dim).
  double attend(int64_t b, int64_t h, int64_t query, const Positions& keys, double* out) const {
    double top = -INFINITY, sum = 0;
    std::fill(out, out + c.shape.head_dim, 0.0);
    for (int64_t row = 0; row < keys.rows; ++row)
      if (sees(b, query, keys.at(row))) top = std::max(top, score(b, h, query, keys.at(row)));
    if (top == -INFINITY) return top;
    for (int64_t row = 0; row < keys.rows; ++row) {
      const int64_t key = keys.at(row);
      if (!sees(b, query, key)) continue;
      const double e = std::exp(score(b, h, query, key) - top);
      sum += e;
      for (int64_t i = 0; i < c.shape.head_dim; ++i)
        out[i] += e * factor(b, h, query, key) * v[kv(b, key, h) + i];
    }
    for (int64_t i = 0; i < c.shape.head_dim; ++i) out[i] /= sum;
    return top + std::log(sum);
  }
  /// Gradients of all of q, k, v by the textbook formula.
  void backward(std::vector<double>& dq, std::vector<double>& dk, std::vector<double>& dv) const {
    const AttentionShape& a = c.shape;
    dq.assign(q.size(), 0), dk.assign(k.size(), 0), dv.assign(v.size(), 0);
    std::vector<double> out(a.head_dim);
    const double scale = 1 / std::sqrt(static_cast<double>(a.head_dim));
    for (int64_t b = 0; b < a.batch; ++b)
      for (int64_t h = 0; h < a.heads; ++h)
        for (int64_t t = 0; t < a.seq; ++t) {
          const double lse = attend(b, h, t, a.seq, out.data());
          const int64_t row = at(b, t, a.heads, h);
          double delta = 0;
          for (int64_t i = 0; i < a.head_dim; ++i) delta += dout[row + i] * out[i];
          for (int64_t key = 0; key <= t; ++key) {
            if (!sees(b, t, key)) continue;
            const double p = std::exp(score(b, h, t, key) - lse), f = factor(b, h, t, key);
            const int64_t to = kv(b, key, h);
            double dp = 0;
            for (int64_t i = 0; i < a.head_dim; ++i) {
              dp += dout[row + i] * v[to + i];
              dv[to + i] += p * f * dout[row + i];
            }
            for (int64_t i = 0; i < a.head_dim; ++i) {
              dq[row + i] += p * (f * dp - delta) * scale * k[to + i];
              dk[to + i] += p * (f * dp - delta) * scale * q[row + i];
            }
          }
        }
  }
};

/// Rows of `p` of a (batch, seq, width) array.
template <class T>
Guarded<T> cut(const std::vector<double>& x, const Positions& p, int64_t batch, int64_t width) {
  Guarded<T> out(batch * p.rows * width);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t i = 0; i < width; ++i)
        out[(b * p.rows + r) * width + i] =
            T(static_cast<compute_t<T>>(x[(b * p.seq + p.at(r)) * width + i]));
  return out;
}

struct BlockDropout {
  Guarded<int64_t> samples;
  Dropout dropout;
  explicit BlockDropout(const BlockCase& c) : samples(static_cast<int64_t>(c.samples.size())) {
    for (int64_t i = 0; i < samples.size(); ++i) samples[i] = c.samples[i];
    dropout.p = c.dropout, dropout.seed = 11, dropout.stream = 22;
    dropout.sample_index = tensor_of(samples, {samples.size()});
  }
};

/// The parts of one rank, and the op's view of them.
template <class T>
struct Part {
  Positions at;
  Guarded<T> q, kv, dout;  // kv: rows of k heads, then v heads

  Part(const Whole& w, const Positions& p)
      : at(p),
        q(cut<T>(w.q, p, w.c.shape.batch, w.c.shape.heads * w.c.shape.head_dim)),
        kv(w.c.shape.batch * p.rows * 2 * w.c.shape.kv_heads * w.c.shape.head_dim),
        dout(cut<T>(w.dout, p, w.c.shape.batch, w.c.shape.heads * w.c.shape.head_dim)) {
    const int64_t width = w.c.shape.kv_heads * w.c.shape.head_dim;
    const auto k = cut<T>(w.k, p, w.c.shape.batch, width), v = cut<T>(w.v, p, w.c.shape.batch, width);
    for (int64_t r = 0; r < w.c.shape.batch * p.rows; ++r)
      for (int64_t i = 0; i < width; ++i)
        kv[r * 2 * width + i] = k[r * width + i], kv[r * 2 * width + width + i] = v[r * width + i];
  }
};

template <class T>
AttentionBlock block_of(const BlockCase& c, Part<T>& queries, Part<T>& keys, const BlockDropout& drop,
                        Guarded<int32_t>& documents) {
  const AttentionShape& a = c.shape;
  const int64_t q_rows = a.batch * queries.at.rows, k_rows = a.batch * keys.at.rows;
  AttentionBlock b;
  b.shape = a;
  b.q = {tensor_of(queries.q, {q_rows, a.heads * a.head_dim}), 0};
  const Tensor kv = tensor_of(keys.kv, {k_rows, 2 * a.kv_heads * a.head_dim});
  b.k = {kv, 0};
  b.v = {kv, a.kv_heads * a.head_dim};
  b.q_at = queries.at, b.k_at = keys.at;
  if (!c.documents.empty()) b.documents = tensor_of(documents, {a.batch, a.seq});
  b.drop = drop.dropout;
  return b;
}

Guarded<int32_t> document_array(const BlockCase& c) {
  Guarded<int32_t> d(static_cast<int64_t>(c.documents.size()));
  for (int64_t i = 0; i < d.size(); ++i) d[i] = c.documents[i];
  return d;
}

std::vector<Positions> zig_zag(int64_t seq, int ranks) {
  const int64_t each = seq / (2 * ranks);
  std::vector<Positions> cuts;
  for (int r = 0; r < ranks; ++r)
    cuts.push_back(Positions::two_runs(r * each, (2 * ranks - 1 - r) * each, each, seq));
  return cuts;
}

/// Out and lse of `queries` over the keys of `keys`, as the reference has them.
void expected_block(const Whole& w, const Positions& queries, const Positions& keys, std::vector<double>& out,
                    std::vector<double>& lse) {
  const AttentionShape& a = w.c.shape;
  out.assign(a.batch * queries.rows * a.heads * a.head_dim, 0);
  lse.assign(a.batch * a.heads * queries.rows, 0);
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t r = 0; r < queries.rows; ++r)
        lse[(b * a.heads + h) * queries.rows + r] = w.attend(
            b, h, queries.at(r), keys, out.data() + ((b * queries.rows + r) * a.heads + h) * a.head_dim);
}

const AttentionShape kAttentionShapes[] = {{2, 24, 4, 2, 8}, {1, 272, 2, 1, 20}, {1, 264, 2, 2, 8, 3, 6}};

double error(const Guarded<double>& got, const std::vector<double>& want) { return worst_error(got, want); }

}  // namespace

TEST_CASE("one block of attention equals the reference over its keys alone") {
  auto stream = make_inline_stream("test");
  for (const AttentionShape& shape : kAttentionShapes)
    for (double p : {0.0, 0.3})
      for (bool packed : {false, true}) {
        const Whole w(make_case(shape, p, packed));
        const BlockDropout drop(w.c);
        auto documents = document_array(w.c);
        std::vector<Positions> parts = zig_zag(shape.seq, 2);
        parts.push_back(Positions::run(5, 11, shape.seq));
        for (const int64_t at : {int64_t{3}, shape.seq - 1})
          parts.push_back(Positions::run(at, 1, shape.seq));
        parts.push_back(shape.seq);
        for (const Positions& queries : parts)
          for (const Positions& keys : parts) {
            INFO("seq " << shape.seq << " dropout " << p << " packed " << packed << " queries from "
                        << queries.first << ", " << queries.second << ", keys from " << keys.first << ", "
                        << keys.second);
            Part<double> q(w, queries), k(w, keys);
            Guarded<double> out(q.q.size()), lse(shape.batch * shape.heads * queries.rows);
            attention_block_forward(
                *stream, tensor_of(out, {shape.batch * queries.rows, shape.heads * shape.head_dim}),
                tensor_of(lse, {shape.batch, shape.heads, queries.rows}),
                block_of(w.c, q, k, drop, documents));
            std::vector<double> want_out, want_lse;
            expected_block(w, queries, keys, want_out, want_lse);
            REQUIRE(out.intact());
            REQUIRE(lse.intact());
            REQUIRE(error(out, want_out) < 1e-12);
            for (int64_t i = 0; i < lse.size(); ++i) {
              if (want_lse[i] == -INFINITY) {
                REQUIRE(lse[i] == -INFINITY);
              } else {
                REQUIRE(std::abs(lse[i] - want_lse[i]) < 1e-12);
              }
            }
          }
      }
}

TEST_CASE("merged blocks equal attention over the whole, backward included") {
  auto stream = make_inline_stream("test");
  for (const AttentionShape& shape : kAttentionShapes)
    for (double p : {0.0, 0.3})
      for (bool packed : {false, true})
        for (int ranks : {2, 4}) {
          const Whole w(make_case(shape, p, packed));
          const BlockDropout drop(w.c);
          auto documents = document_array(w.c);
          const auto cuts = zig_zag(shape.seq, ranks);
          std::vector<Part<double>> parts;
          for (const Positions& at : cuts) parts.emplace_back(w, at);
          const int64_t q_width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
          std::vector<double> dq, dk, dv;
          w.backward(dq, dk, dv);
          std::vector<Guarded<double>> dkv;  // gradients of each part, summed over the queries of all
          for (auto& part : parts) {
            dkv.emplace_back(part.kv.size());
            for (int64_t i = 0; i < part.kv.size(); ++i) dkv.back()[i] = 0;
          }
          INFO("seq " << shape.seq << " dropout " << p << " packed " << packed << " parts " << ranks);
          for (int r = 0; r < ranks; ++r) {
            const int64_t rows = shape.batch * cuts[r].rows;
            Guarded<double> out(rows * q_width), lse(shape.heads * rows), out_b(rows * q_width),
                lse_b(shape.heads * rows), grad_q(rows * q_width);
            const Tensor o = tensor_of(out, {rows, q_width}), ob = tensor_of(out_b, {rows, q_width});
            const Tensor l = tensor_of(lse, {shape.batch, shape.heads, cuts[r].rows}),
                         lb = tensor_of(lse_b, l.shape);
            for (int t = 0; t < ranks; ++t) {  // the order of the ring: own keys first
              const AttentionBlock b =
                  block_of(w.c, parts[r], parts[(r - t + ranks) % ranks], drop, documents);
              attention_block_forward(*stream, t ? ob : o, t ? lb : l, b);
              if (t) merge_attention(*stream, o, l, ob, lb);
            }
            std::vector<double> want_out, want_lse;
            expected_block(w, cuts[r], shape.seq, want_out, want_lse);
            REQUIRE(error(out, want_out) < 1e-12);
            REQUIRE(error(lse, want_lse) < 1e-12);
            for (int t = 0; t < ranks; ++t) {
              const int from = (r - t + ranks) % ranks;
              AttentionBlockGrads g;
              g.dq = {tensor_of(grad_q, {rows, q_width}), 0};
              const Tensor to = tensor_of(dkv[from], {shape.batch * cuts[from].rows, 2 * kv_width});
              g.dk = {to, 0}, g.dv = {to, kv_width};
              g.add_q = t > 0, g.add_kv = true;
              attention_block_backward(*stream, g, tensor_of(parts[r].dout, {rows, q_width}), o, l,
                                       block_of(w.c, parts[r], parts[from], drop, documents));
            }
            const auto want_q = cut<double>(dq, cuts[r], shape.batch, q_width);
            REQUIRE(error(grad_q, doubles(want_q)) < 1e-12);
          }
          for (int r = 0; r < ranks; ++r) {
            const auto want_k = cut<double>(dk, cuts[r], shape.batch, kv_width),
                       want_v = cut<double>(dv, cuts[r], shape.batch, kv_width);
            std::vector<double> want(dkv[r].size());
            for (size_t i = 0; i < want.size(); ++i) {
              const int64_t row = static_cast<int64_t>(i) / (2 * kv_width), col = i % (2 * kv_width);
              want[i] =
                  col < kv_width ? want_k[row * kv_width + col] : want_v[row * kv_width + col - kv_width];
            }
            REQUIRE(error(dkv[r], want) < 1e-12);
          }
        }
}

TEST_CASE("with values of one, every output is one, over any blocks") {
  auto stream = make_inline_stream("test");
  const AttentionShape shape{1, 160, 2, 1, 8};
  Whole w(make_case(shape, 0, true));
  std::fill(w.v.begin(), w.v.end(), 1.0);
  const BlockDropout drop(w.c);
  auto documents = document_array(w.c);
  const auto cuts = zig_zag(shape.seq, 4);
  std::vector<Part<float>> parts;
  for (const Positions& at : cuts) parts.emplace_back(w, at);
  for (int r = 0; r < 4; ++r) {
    const int64_t rows = cuts[r].rows;
    Guarded<float> out(rows * 16), lse(2 * rows), out_b(rows * 16), lse_b(2 * rows);
    const Tensor l = tensor_of(lse, {1, 2, rows}), lb = tensor_of(lse_b, {1, 2, rows});
    for (int t = 0; t < 4; ++t) {
      const AttentionBlock b = block_of(w.c, parts[r], parts[(r - t + 4) % 4], drop, documents);
      attention_block_forward(*stream, tensor_of(t ? out_b : out, {rows, 16}), t ? lb : l, b);
      if (t) merge_attention(*stream, tensor_of(out, {rows, 16}), l, tensor_of(out_b, {rows, 16}), lb);
    }
    for (float x : doubles(out)) REQUIRE(std::abs(x - 1) < 1e-6);
  }
}

TEST_CASE("a bf16 block may leave its output and gradients in f32, to be summed") {
  auto stream = make_inline_stream("test");
  const AttentionShape shape{1, 72, 2, 1, 16};
  const Whole w(make_case(shape, 0, false));
  const BlockDropout drop(w.c);
  auto documents = document_array(w.c);
  Part<bf16> all(w, shape.seq);
  const AttentionBlock b = block_of(w.c, all, all, drop, documents);
  Guarded<float> wide(72 * 32), lse(2 * 72), dq(72 * 32), dkv(72 * 32);
  Guarded<bf16> narrow(72 * 32);
  const Tensor l = tensor_of(lse, {1, 2, 72});
  attention_block_forward(*stream, tensor_of(wide, {72, 32}), l, b);
  attention_block_forward(*stream, tensor_of(narrow, {72, 32}), l, b);
  for (int64_t i = 0; i < wide.size(); ++i) REQUIRE(narrow[i].bits == bf16(wide[i]).bits);
  std::vector<double> want_q, want_k, want_v;
  w.backward(want_q, want_k, want_v);
  AttentionBlockGrads g;
  g.dq = {tensor_of(dq, {72, 32}), 0};
  g.dk = {tensor_of(dkv, {72, 32}), 0}, g.dv = {tensor_of(dkv, {72, 32}), 16};
  attention_block_backward(*stream, g, tensor_of(all.dout, {72, 32}), tensor_of(narrow, {72, 32}), l, b);
  CHECK(worst_error(dq, want_q) < 0.05);  // the inputs were rounded
  const double first = dq[100];
  g.add_q = true;
  attention_block_backward(*stream, g, tensor_of(all.dout, {72, 32}), tensor_of(narrow, {72, 32}), l, b);
  CHECK(dq[100] == static_cast<float>(2 * first));
}

TEST_CASE("visible pairs are counted as the mask has them") {
  const int64_t seq = 48;
  std::vector<Positions> parts = zig_zag(seq, 3);
  parts.push_back(seq);
  parts.push_back(Positions::run(7, 9, seq));
  double total = 0;
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t j = 0; j < parts.size(); ++j) {
      int64_t count = 0;
      for (int64_t q = 0; q < parts[i].rows; ++q)
        for (int64_t k = 0; k < parts[j].rows; ++k) count += parts[j].at(k) <= parts[i].at(q);
      CHECK(visible_pairs(parts[i], parts[j]) == static_cast<double>(count));
      if (i < 3 && j < 3) total += visible_pairs(parts[i], parts[j]);
    }
  CHECK(total == seq * (seq + 1) / 2);
  for (int64_t window : {1, 2, 5, 16, 47, 48, 100})
    for (const Positions& queries : parts)
      for (const Positions& keys : parts) {
        int64_t count = 0;
        for (int64_t q = 0; q < queries.rows; ++q)
          for (int64_t k = 0; k < keys.rows; ++k) {
            const int64_t behind = queries.at(q) - keys.at(k);
            count += behind >= 0 && behind < window;
          }
        CHECK(visible_pairs(queries, keys, window) == static_cast<double>(count));
      }
  // The zig-zag cut gives every rank the same work.
  for (int r = 0; r < 3; ++r) CHECK(visible_pairs(parts[r], seq) == total / 3);
}

TEST_CASE("a sequence's rows and positions are each other's inverse") {
  for (const Positions& p : zig_zag(48, 4)) {
    int64_t have = 0;
    for (int64_t at = 0; at < 48; ++at) {
      const int64_t row = p.row_of(at);
      have += row >= 0;
      if (row >= 0) CHECK(p.at(row) == at);
    }
    CHECK(have == p.rows);
  }
}

TEST_CASE("merging is by hand what the formula says, and minus infinity is no result") {
  auto stream = make_inline_stream("test");
  Guarded<double> out(3), lse(3), out_b(3), lse_b(3);
  const double none = -INFINITY, a[] = {1, 7, 0}, la[] = {0.3, 2.0, none}, b[] = {4, 0, 5},
               lb[] = {1.1, none, -3.0};
  for (int i = 0; i < 3; ++i) out[i] = a[i], lse[i] = la[i], out_b[i] = b[i], lse_b[i] = lb[i];
  merge_attention(*stream, tensor_of(out, {3, 1}), tensor_of(lse, {1, 1, 3}), tensor_of(out_b, {3, 1}),
                  tensor_of(lse_b, {1, 1, 3}));
  const double e0 = std::exp(0.3), e1 = std::exp(1.1);
  CHECK(std::abs(out[0] - (e0 * 1 + e1 * 4) / (e0 + e1)) < 1e-14);
  CHECK(std::abs(lse[0] - std::log(e0 + e1)) < 1e-14);
  CHECK(out[1] == 7);
  CHECK(lse[1] == 2);
  CHECK(out[2] == 5);
  CHECK(lse[2] == -3);
}
