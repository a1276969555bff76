#include "kernels/attention/attention.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/distillation.h"
#include "kernels/loss/sample_labels.h"
#include "kernels/loss/top_logits.h"
#include "kernels/matmul/matmul.h"
#include "tests/cuda/twin.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("gelu's gradient with the sums of its columns: the bits of both apart") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const GeluForm form : {GeluForm::tanh, GeluForm::erf})
      // One row, one chunk of rows, several; columns of packs and others.
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{1, 8}, {70, 37}, {130, 264}, {999, 72}, {1500, 8}}) {
        CAPTURE(dtype_name(t), rows, cols, form == GeluForm::erf);
        Twin w(t);
        const auto x = w.random(t, {rows, cols}, 4), dy = w.random(t, {rows, cols});
        const auto apart = w.blank(t, {rows, cols}), together = w.random(t, {rows, cols}, 4);
        const auto sums_apart = w.random(wide(t), {cols}), first = w.random(wide(t), {cols});
        const auto sums = w.random(wide(t), {cols});
        w.check([&](Stream& s, const Twin::At& at) {
          const auto same = [&](Twin::Id a, Twin::Id b) {
            std::string bits[2];
            for (const auto& [to, id] : {std::pair{&bits[0], a}, {&bits[1], b}}) {
              to->resize(static_cast<size_t>(at(id).bytes()));
              s.copy(to->data(), at(id).data, at(id).bytes());
            }
            s.synchronize();
            return bits[0] == bits[1];
          };
          s.copy(at(together).data, at(x).data, at(x).bytes());
          s.copy(at(sums).data, at(sums_apart).data, at(sums).bytes());
          gelu_backward(s, at(apart), at(dy), at(x), form);
          sum_rows(s, at(first), at(apart), false);
          sum_rows(s, at(sums_apart), at(apart), true);
          CHECK_FALSE(same(sums, sums_apart));
          gelu_backward_sums(s, at(together), at(sums), at(dy), at(together), form, true);  // in place
          CHECK(same(together, apart));
          CHECK(same(sums, sums_apart));
          gelu_backward_sums(s, at(together), at(sums), at(dy), at(x), form, false);
          CHECK(same(sums, first));
        });
      }
}

TEST_CASE("cross-entropy with its gradient, in place and narrower, some rows not counted") {
  if (!have_cuda()) return;
  for (const auto& [type, grad] : {std::pair{DType::f32, DType::f32},
                                   {DType::f32, DType::bf16},
                                   {DType::f32, DType::f16},
                                   {DType::f64, DType::f64}})
    for (const auto& [vocab, cap] :
         {std::pair<int64_t, double>{5, 0}, {600, 0}, {1031, 0}, {9001, 0}, {5, 3}, {1031, 3}}) {
      CAPTURE(dtype_name(type), dtype_name(grad), vocab, cap);
      Twin w(type);
      const int64_t rows = vocab == 600 && cap == 0 ? 0 : 6;
      const auto logits = w.random(type, {rows, vocab}, 8), in_place = w.random(type, {rows, vocab}, 8);
      const auto targets =
          w.of(DType::i32, {rows}, [&, vocab = vocab](int64_t i) { return i == 2 ? -1 : (i * 7) % vocab; });
      const auto d = w.blank(grad, {rows, vocab});
      const auto loss = w.of(DType::f64, {1}, [](int64_t) { return 0.5; });
      const auto z = w.of(DType::f64, {1}, [](int64_t) { return 0.25; }),
                 with_z = w.blank(grad, {rows, vocab});
      w.check(
          [&, cap = cap](Stream& s, const Twin::At& at) {
            cross_entropy(s, at(loss), at(d), at(logits), at(targets), 0.125, cap);
            cross_entropy(s, at(loss), at(with_z), at(logits), at(targets), 0.125, cap, {0.02, at(z)});
            cross_entropy(s, at(loss), {}, at(logits), at(targets), 0.125, cap);
            cross_entropy(s, at(loss), at(in_place), at(in_place), at(targets), 0.125, cap);
            if (cap > 0) soft_cap_logits(s, at(logits), cap);
          },
          type == DType::f64 ? 1 : 2);
    }
}

TEST_CASE("cross-entropy of rows that a block keeps, whole and in part, some rows not counted") {
  if (!have_cuda()) return;
  for (const auto& [grad, vocab, cap] : {std::tuple{DType::f32, int64_t{32003}, 0.0},
                                         {DType::bf16, kKeptLogits, 0.0},
                                         {DType::f32, int64_t{90003}, 0.0},
                                         {DType::f16, int64_t{65543}, 3.0}}) {
    CAPTURE(dtype_name(grad), vocab, cap);
    Twin w(DType::f32);
    const int64_t rows = cuda::multiprocessors() + 6;  // more than there are blocks
    const auto logits = w.random(DType::f32, {rows, vocab}, 8);
    const auto d = grad == DType::f32 ? logits : w.blank(grad, {rows, vocab});
    // A block's first row does not count, one after one that does, and one after one that does not.
    const auto targets = w.of(DType::i32, {rows}, [&, vocab = vocab](int64_t i) {
      const int64_t of = i % 8;
      return of == 1 || of == 2 || of == 4 || of == 5 ? -1 : i == 3 ? vocab - 1 : i * 9973 % vocab;
    });
    const auto loss = w.of(DType::f64, {1}, [](int64_t) { return 0.5; }),
               z = w.of(DType::f64, {1}, [](int64_t) { return 0.25; });
    w.check(
        [&, cap = cap](Stream& s, const Twin::At& at) {
          cross_entropy(s, at(loss), at(d), at(logits), at(targets), 0.125, cap, {0.02, at(z)});
        },
        2);
  }
}

TEST_CASE("cross-entropy over a vocabulary that ranks share, with padding") {
  if (!have_cuda()) return;
  for (const auto& [t, cap] :
       {std::pair{DType::f32, 0.0}, {DType::f64, 0.0}, {DType::f32, 3.0}, {DType::f64, 3.0}}) {
    CAPTURE(dtype_name(t), cap);
    Twin w(t);
    const int64_t rows = 5, width = 40;
    const auto a = w.random(t, {rows, width}, 6), b = w.random(t, {rows, width}, 6);
    const auto targets = w.of(DType::i32, {rows}, [](int64_t i) { return i == 1 ? -1 : i * 17; });
    const auto stats = w.blank(t, {2 * rows, 3}), d = w.blank(t, {rows, width});
    const auto loss = w.of(DType::f64, {1}, [](int64_t) { return 0; });
    const auto z = w.of(DType::f64, {1}, [](int64_t) { return 0; }), with_z = w.blank(t, {rows, width});
    const VocabColumns first{0, 40}, second{40, 33};
    w.check([&, cap = cap](Stream& s, const Twin::At& at) {
      cross_entropy_stats(s, at(stats).narrow(0, rows), at(a), at(targets), first, cap);
      cross_entropy_stats(s, at(stats).narrow(rows, rows), at(b), at(targets), second, cap);
      cross_entropy_sharded(s, at(loss), at(d), at(b), at(targets), at(stats), second, 0.5, cap);
      cross_entropy_sharded(s, at(loss), at(with_z), at(b), at(targets), at(stats), second, 0.5, cap,
                            {0.02, at(z)});
    });
  }
}

TEST_CASE("distillation over the whole vocabulary and over one that ranks share, some rows not counted") {
  if (!have_cuda()) return;
  for (const auto& [type, grad] : {std::pair{DType::f32, DType::f32},
                                   {DType::f32, DType::bf16},
                                   {DType::f32, DType::f16},
                                   {DType::f64, DType::f64}})
    for (const auto& [width, cap] : {std::pair<int64_t, double>{5, 0}, {40, 3}, {4099, 0}}) {
      CAPTURE(dtype_name(type), dtype_name(grad), width, cap);
      Twin w(type);
      const int64_t rows = 6, columns = width == 40 ? 33 : width;
      const auto a = w.random(type, {rows, width}, 6), b = w.random(type, {rows, width}, 6),
                 in_place = w.random(type, {rows, width}, 6), x = w.random(type, {rows, width}, 6),
                 y = w.random(type, {rows, width}, 6);
      const auto targets = w.of(DType::i32, {rows},
                                [&, width = width](int64_t i) { return i == 1 ? -1 : i * 17 % (width + 1); });
      const auto stats = w.blank(type, {2 * rows, kDistillationStats}),
                 one = w.blank(type, {rows, kDistillationStats});
      const auto d = w.blank(grad, {rows, width});
      const auto sums = w.of(DType::f64, {2}, [](int64_t) { return 0.5; });
      const VocabColumns first{0, width}, second{width, columns}, all{0, width};
      const DistillationLoss loss{0.7, 2.5};
      w.check(
          [&, cap = cap](Stream& s, const Twin::At& at) {
            const Tensor ce = at(sums).flat(0, {1}), kl = at(sums).flat(1, {1});
            distillation_stats(s, at(stats).narrow(0, rows), at(a), at(x), at(targets), first, 2.5, cap);
            distillation_stats(s, at(stats).narrow(rows, rows), at(b), at(y), at(targets), second, 2.5, cap);
            distillation(s, ce, kl, at(d), at(b), at(y), at(targets), at(stats), second, loss, 0.5, cap);
            distillation_stats(s, at(one), at(in_place), at(x), at(targets), all, 2.5, cap);
            distillation(s, ce, kl, at(in_place), at(in_place), at(x), at(targets), at(one), all, loss, 0.5,
                         cap);
          },
          type == DType::f64 ? 1 : 2);
    }
}

TEST_CASE("rows of a teacher's largest logits, over a vocabulary that ranks share") {
  if (!have_cuda()) return;
  for (const DType t : {DType::f32, DType::f64})
    for (const auto& [width, cap] : {std::pair<int64_t, double>{5, 0}, {40, 3}, {4099, 0}}) {
      CAPTURE(dtype_name(t), width, cap);
      Twin w(t);
      const int64_t rows = 6, k = 3, columns = width == 40 ? 33 : width;
      const auto a = w.random(t, {rows, width}, 6), b = w.random(t, {rows, width}, 6),
                 x = w.random(t, {rows, width}, 6), y = w.random(t, {rows, width}, 6);
      const auto values = w.random(t, {rows, k}, 6), rest = w.random(t, {rows}, 2);
      const auto ids = w.of(DType::i32, {rows, k},
                            [&, width = width](int64_t i) { return (i * 7 + i / 3) % (width + columns); });
      const auto targets = w.of(DType::i32, {rows}, [](int64_t i) { return i == 1 ? -1 : i; });
      const auto stats = w.blank(t, {2 * rows, kRestStats});
      const VocabColumns first{0, width}, second{width, columns};
      w.check(
          [&, cap = cap](Stream& s, const Twin::At& at) {
            spread_top_logits(s, at(x), at(stats).narrow(0, rows), at(a), at(ids), at(values), at(targets),
                              first, 2.5, cap);
            spread_top_logits(s, at(y), at(stats).narrow(rows, rows), at(b), at(ids), at(values), at(targets),
                              second, 2.5, cap);
            fill_rest_logits(s, at(x), at(a), at(rest), at(targets), at(stats), first, 2.5, cap);
            fill_rest_logits(s, at(y), at(b), at(rest), at(targets), at(stats), second, 2.5, cap);
          },
          2);
    }
}

TEST_CASE("labels that a model draws from its logits") {
  if (!have_cuda()) return;
  for (const DType t : {DType::f32, DType::f64})
    for (const double cap : {0.0, 3.0})
      for (const auto& [width, columns] : {std::pair<int64_t, int64_t>{40, 33}, {5, 1}, {4099, 4099}}) {
        CAPTURE(dtype_name(t), cap, width);
        Twin w(t);
        const int64_t rows = 24;
        const auto a = w.random(t, {rows, width}, 6), b = w.random(t, {rows, width}, 6);
        const auto targets = w.of(DType::i32, {rows}, [](int64_t i) { return i % 6 == 1 ? -1 : 0; });
        const auto samples = w.of(DType::i64, {4}, [](int64_t i) { return 9 - i; });
        const auto stats = w.blank(t, {2 * rows, 3});
        const auto first = w.blank(DType::i32, {rows}), second = w.blank(DType::i32, {rows}),
                   whole = w.blank(DType::i32, {rows});
        const VocabColumns left{0, width}, right{width, columns};
        w.check([&, cap = cap](Stream& s, const Twin::At& at) {
          RowRandom random;
          random.seed = 3, random.stream = 5, random.sample_index = at(samples), random.rows.seq = 6;
          cross_entropy_stats(s, at(stats).narrow(0, rows), at(a), at(targets), left, cap);
          cross_entropy_stats(s, at(stats).narrow(rows, rows), at(b), at(targets), right, cap);
          sample_labels(s, at(first), at(a), at(targets), at(stats), 0, left, random, cap);
          sample_labels(s, at(second), at(b), at(targets), at(stats), 1, right, random, cap);
          sample_labels(s, at(whole), at(a), at(targets), at(stats).narrow(0, rows), 0, left, random, cap);
        });
      }
}

TEST_CASE("matrix products of every form") {
  if (!have_cuda()) return;
  for (const auto& [in, out] : {std::pair{DType::f32, DType::f32},
                                {DType::bf16, DType::bf16},
                                {DType::bf16, DType::f32},
                                {DType::f16, DType::f16},
                                {DType::f16, DType::f32},
                                {DType::f64, DType::f64}})
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (const auto& [m, n, k] :
             {std::array<int64_t, 3>{5, 7, 3}, {32, 48, 64}, {1, 257, 9}, {0, 7, 3}, {5, 0, 3}, {5, 7, 0}}) {
          CAPTURE(dtype_name(in), dtype_name(out), ta, tb, m, n, k);
          Twin w(in);
          const auto a = w.random(in, ta ? Shape{k, m} : Shape{m, k}),
                     b = w.random(in, tb ? Shape{n, k} : Shape{k, n});
          const auto c = w.random(out, {m, n}), d = w.blank(out, {m, n}), bias = w.random(out, {n});
          w.check([&](Stream& s, const Twin::At& at) {
            MatmulArgs args;
            args.trans_a = ta, args.trans_b = tb;
            if (!ta && tb && in == out && k > 0) args.bias = at(bias);
            matmul(s, at(d), at(a), at(b), args);
            args.bias = {};
            args.accumulate = !is_half(out);
            matmul(s, at(c), at(a), at(b), args);
          });
        }
}

namespace {

struct CombinedCase {
  int64_t batch, seq, heads, kv_heads, dim;
  bool dropout, documents;
};

}  // namespace

TEST_CASE("attention forward and backward: groups, odd lengths, head dims, dropout, documents") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const CombinedCase& c : {CombinedCase{2, 33, 4, 2, 16, false, false},
                                  {1, 70, 2, 1, 64, true, false},
                                  {2, 40, 3, 3, 24, true, true},
                                  {1, 1, 1, 1, 8, false, false},
                                  {1, 34, 2, 2, 128, false, true},
                                  {1, 37, 1, 1, 200, true, false}}) {
      CAPTURE(dtype_name(t), c.seq, c.heads, c.kv_heads, c.dim, c.dropout, c.documents);
      AttentionShape shape;
      shape.batch = c.batch, shape.seq = c.seq, shape.heads = c.heads, shape.kv_heads = c.kv_heads;
      shape.head_dim = c.dim;
      Twin w(t);
      const int64_t rows = c.batch * c.seq, width = c.heads * c.dim;
      const auto qkv = w.random(t, {rows, shape.qkv_width()}, 2), dout = w.random(t, {rows, width});
      const auto out = w.blank(t, {rows, width}), lse = w.blank(wide(t), {c.batch, c.heads, c.seq});
      const auto dqkv = w.blank(t, {rows, shape.qkv_width()});
      const auto samples = w.of(DType::i64, {c.batch}, [](int64_t i) { return 5 + i; });
      const auto begins = w.of(DType::i32, {c.batch, c.seq}, [&](int64_t i) { return i % c.seq / 13 * 13; });
      w.check(
          [&](Stream& s, const Twin::At& at) {
            Dropout d;
            if (c.dropout)
              d.p = 0.2, d.seed = 4, d.stream = 8, d.sample_index = at(samples), d.rows.seq = c.seq;
            const Tensor documents = c.documents ? at(begins) : Tensor();
            attention_forward(s, at(out), at(lse), at(qkv), shape, d, documents);
            attention_backward(s, at(dqkv), at(dout), at(qkv), at(out), at(lse), shape, d, documents);
          },
          4);
    }
}

TEST_CASE("attention of some queries against some keys, added to what is there") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    CAPTURE(dtype_name(t));
    const int64_t seq = 96, heads = 2, kv_heads = 1, dim = 16, rows = 48;
    Twin w(t);
    const auto q = w.random(t, {rows, heads * dim}, 2), k = w.random(t, {rows, dim}, 2),
               v = w.random(t, {rows, dim});
    const auto out = w.blank(wide(t), {rows, heads * dim}), lse = w.blank(wide(t), {1, heads, rows});
    const auto low = w.random(t, {rows, heads * dim}), dout = w.random(t, {rows, heads * dim});
    const auto final_lse =
        w.of(wide(t), {1, heads, rows}, [](int64_t i) { return 3.0 + 0.1 * static_cast<double>(i % 5); });
    const auto dq = w.random(wide(t), {rows, heads * dim}), dk = w.random(wide(t), {rows, dim});
    const auto dv = w.random(wide(t), {rows, dim});
    w.check(
        [&](Stream& s, const Twin::At& at) {
          AttentionBlock b;
          b.shape.batch = 1, b.shape.seq = seq, b.shape.heads = heads, b.shape.kv_heads = kv_heads,
          b.shape.head_dim = dim;
          b.q = {at(q), 0}, b.k = {at(k), 0}, b.v = {at(v), 0};
          b.q_at = Positions::two_runs(0, 72, 24, seq);  // zig-zag: rank 0 of 2
          b.k_at =
              Positions::two_runs(24, 48, 24, seq);  // rank 1's: the first run of queries sees none of them
          attention_block_forward(s, at(out), at(lse), b);
          AttentionBlockGrads g{{at(dq), 0}, {at(dk), 0}, {at(dv), 0}, true, true};
          attention_block_backward(s, g, at(dout), at(low), at(final_lse), b);
        },
        4);
  }
}
