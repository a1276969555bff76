#include "kernels/attention/merge_attention.h"
#include "kernels/attention/rope.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/dropout.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/magnitude.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/row_scores.h"
#include "kernels/matmul/nf4.h"
#include "kernels/matmul/sparse/prune_unbiased.h"
#include "kernels/norm/norm_cut.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/round_stochastic.h"
#include "tests/cuda/twin.h"
#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/cuda/kernel_cuda.h"
#endif

using namespace ltrain;
using namespace ltrain::test;

// Columns that packs of 16 bytes divide, and that they do not; one row; no rows, as an expert may have.
const std::pair<int64_t, int64_t> kShapes[] = {{5, 64}, {3, 37}, {1, 8}, {70, 130}, {0, 64}, {0, 37}};

TEST_CASE("activations") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] : kShapes) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto gate_up = w.random(t, {rows, 2 * cols}, 4), dy = w.random(t, {rows, cols});
      const auto x = w.random(t, {rows, cols}, 4);
      const auto y = w.blank(t, {rows, cols}), d = w.blank(t, {rows, 2 * cols});
      const auto g = w.blank(t, {rows, cols}), dg = w.blank(t, {rows, cols});
      const auto gg = w.blank(t, {rows, cols}), dgg = w.blank(t, {rows, 2 * cols});
      const auto wide = w.random(t, {rows, 2 * cols}, 10);  // beyond the limits
      const auto c = w.blank(t, {rows, cols}), dc = w.blank(t, {rows, 2 * cols});
      const auto e = w.blank(t, {rows, cols}), de = w.blank(t, {rows, cols});
      const auto ge = w.blank(t, {rows, cols}), dge = w.blank(t, {rows, 2 * cols});
      w.check([&](Stream& s, const Twin::At& at) {
        swiglu_forward(s, at(y), at(gate_up));
        swiglu_backward(s, at(d), at(dy), at(gate_up));
        geglu_forward(s, at(gg), at(gate_up));
        geglu_backward(s, at(dgg), at(dy), at(gate_up));
        clamped_swiglu_forward(s, at(c), at(wide));
        clamped_swiglu_backward(s, at(dc), at(dy), at(wide));
        gelu_forward(s, at(g), at(x));
        gelu_backward(s, at(dg), at(dy), at(x));
        gelu_forward(s, at(e), at(x), GeluForm::erf);
        gelu_backward(s, at(de), at(dy), at(x), GeluForm::erf);
        geglu_forward(s, at(ge), at(gate_up), GeluForm::erf);
        geglu_backward(s, at(dge), at(dy), at(gate_up), GeluForm::erf);
      });
    }
}

TEST_CASE("magnitudes of rows") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] : kShapes) {
      if (rows == 0) continue;  // rows of a weight
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto weight = w.random(t, {rows, cols}), more = w.random(t, {rows, cols}),
                 change = w.random(t, {rows});
      const auto squares = w.blank(wide(t), {rows, 2}), factors = w.blank(wide(t), {rows, 2});
      const auto x = w.random(t, {70, rows}), dy = w.random(t, {70, rows}), y = w.blank(t, {70, rows});
      const auto sums = w.random(wide(t), {rows}), fresh = w.blank(wide(t), {rows});
      w.check([&](Stream& s, const Twin::At& at) {
        row_squares(s, at(squares), at(weight), at(more));
        magnitude_factors(s, at(factors), at(squares), at(change));
        scale_columns(s, at(y), at(x), at(factors));
        scale_columns(s, at(x), at(x), at(factors));
        magnitude_gradient(s, at(sums), at(dy), at(y), at(factors), true);
        magnitude_gradient(s, at(fresh), at(dy), at(y), at(factors), false);
      });
    }
}

TEST_CASE("scores of rows") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] : kShapes) {
      if (rows == 0) continue;  // a micro-batch has rows
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto x = w.random(t, {rows, cols}), weight = w.random(t, {1, cols}),
                 dx = w.blank(t, {rows, cols});
      const auto values = w.blank(DType::f64, {rows}), weights = w.random(DType::f64, {3});
      const auto targets = w.of(DType::i32, {rows}, [](int64_t i) { return i % 5 == 3 || i == 0 ? i : -1; }),
                 texts = w.of(DType::i32, {rows}, [](int64_t i) { return i % 3; });
      const auto sums = w.random(wide(t), {1, cols}), fresh = w.blank(wide(t), {1, cols});
      w.check([&](Stream& s, const Twin::At& at) {
        const ScoreGradient gradient{
            .targets = at(targets), .texts = at(texts), .weights = at(weights), .scale = 0.5};
        row_scores(s, at(values), at(x), at(weight), at(targets));
        row_scores_backward(s, at(dx), at(weight), gradient);
        row_scores_weight(s, at(sums), at(x), gradient, true);
        row_scores_weight(s, at(fresh), at(x), gradient, false);
      });
    }
}

TEST_CASE("weights in NF4") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const int64_t rows : {1, 3, 70}) {
      CAPTURE(dtype_name(t), rows);
      Twin w(t);
      const int64_t cols = 2 * kNf4Block;
      const auto weight = w.blank(t, {rows, cols});
      const auto codes =
          w.of(DType::u8, {rows, cols / kNf4Pair}, [](int64_t i) { return (7 * i + i / 256) % 256; });
      const auto absmax = w.random(DType::f32, {rows, cols / kNf4Block});
      w.check(
          [&](Stream& s, const Twin::At& at) {
            nf4_dequantize(s, at(weight), {at(codes), at(absmax)});
          },
          0);
    }
}

TEST_CASE("stochastic rounding takes the same chances") {
  if (!have_cuda()) return;
  for (int64_t n : {1, 700, 1234}) {
    Twin w(DType::f32);
    const auto in = w.random(DType::f32, {n}), out = w.blank(DType::bf16, {n});
    BoxElements e;
    e.rank = 2;
    e.global[0] = 50, e.global[1] = 61, e.offset[0] = 3, e.offset[1] = 7, e.extent[0] = 40, e.extent[1] = 35;
    e.begin = 11;
    w.check([&](Stream& s, const Twin::At& at) { round_stochastic(s, at(out), at(in), 5, 6, e); }, 1e-6);
  }
}

TEST_CASE("AdamW, with and without a bf16 copy, on odd sizes") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64})
    for (int64_t n : {1, 4, 37, 100, 1000, 4000})
      for (bool low : {false, true}) {
        CAPTURE(dtype_name(t), n, low);
        Twin w(t);
        const auto master = w.random(t, {n}), m = w.random(t, {n}), g = w.random(t, {n});
        const auto v = w.of(t, {n}, [](int64_t i) { return 0.01 * static_cast<double>(i % 9); });
        const auto copy = w.blank(DType::bf16, {n});
        OptimizerStep a;
        a.lr = 0.01, a.weight_decay = 0.1, a.grad_scale = 0.5, a.step = 3;
        w.check([&](Stream& s, const Twin::At& at) {
          for (const bool decay : {true, false})
            adamw(s, at(master), at(m), at(v), at(g), low ? at(copy) : Tensor(), {{n, decay, a}});
          std::vector<AdamwRun> runs;  // more than a launch takes, some shorter than what a thread takes
          for (int64_t i = 0, end = 1; runs.empty() || runs.back().end < n;
               ++i, end += n < 1000 ? 3 : 4 * i) {
            OptimizerStep own = a;
            own.lr = 0.01 * static_cast<double>(i % 5);
            runs.push_back({std::min(end, n), i % 3 == 0, own});
          }
          adamw(s, at(master), at(m), at(v), at(g), low ? at(copy) : Tensor(), runs);
        });
      }
}

TEST_CASE("AdamW of many places at once: each as alone, wherever it lies") {
  if (!have_cuda()) return;
  for (const DType t : {DType::f32, DType::f64})
    for (const bool low : {false, true}) {
      CAPTURE(dtype_name(t), low);
      Twin w(t);
      // More than a launch takes; of odd lengths, so that some begin where no pack may.
      constexpr int64_t kParts = 60, kAll = 90 * kParts + 40000;
      const auto master = w.random(t, {kAll}), m = w.random(t, {kAll}), g = w.random(t, {kAll});
      const auto v = w.of(t, {kAll}, [](int64_t i) { return 0.01 * static_cast<double>(i % 9); });
      const auto copy = w.blank(DType::bf16, {kAll});
      const auto again = w.of(t, {kAll}, [&](int64_t) { return 0.0; });
      OptimizerStep a;
      a.lr = 0.01, a.weight_decay = 0.1, a.grad_scale = 0.5, a.step = 3;
      w.check([&](Stream& s, const Twin::At& at) {
        std::vector<AdamwPart> parts;
        int64_t begin = 0;
        for (int64_t i = 0; i < kParts; ++i) {
          const int64_t n = i == 7 ? 40000 : 60 + i % 31;
          const auto of = [&](Twin::Id id) { return at(id).flat(begin, {n}); };
          OptimizerStep own = a;
          own.lr = 0.01 * static_cast<double>(i % 5);
          parts.push_back({of(master),
                           of(m),
                           of(v),
                           of(g),
                           low ? of(copy) : Tensor(),
                           {{n / 3, true, own}, {n, false, a}}});
          begin += n;
        }
        adamw(s, parts);
        cast(s, at(again), at(master));
      });
    }
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("AdamW of the buckets of a rank is one launch, with the bits of a launch each") {
  const int64_t n = 1000, buckets = 9;
  const auto stream = cuda::make_cuda_stream("cuda");
  OptimizerStep a;
  a.lr = 0.01, a.weight_decay = 0.1, a.step = 2;
  std::vector<std::vector<float>> results;
  std::vector<int64_t> launches;
  for (const bool together : {false, true}) {
    std::vector<std::shared_ptr<void>> memory;
    const auto make = [&](uint64_t id, DType type) {
      std::vector<float> values(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i)
        values[static_cast<size_t>(i)] = static_cast<float>(std::abs(random_value(id, i, 1)));
      memory.push_back(cuda::device_memory(n * 4));
      stream->copy(memory.back().get(), values.data(), n * 4);
      stream->synchronize();
      Tensor t;
      t.data = memory.back().get(), t.dtype = type, t.shape = {n}, t.device = DeviceKind::cuda;
      return t;
    };
    std::vector<AdamwPart> parts;
    for (uint64_t b = 0; b < static_cast<uint64_t>(buckets); ++b)
      parts.push_back({make(5 * b, DType::f32),
                       make(5 * b + 1, DType::f32),
                       make(5 * b + 2, DType::f32),
                       make(5 * b + 3, DType::f32),
                       make(5 * b + 4, DType::bf16),
                       {{n, true, a}}});
    cuda::emulated_traffic.clear();
    if (together) {
      adamw(*stream, parts);
    } else {
      for (const AdamwPart& p : parts) adamw(*stream, {p});
    }
    stream->synchronize();
    launches.push_back(cuda::emulated_traffic.launches);
    std::vector<float> all;
    for (const AdamwPart& p : parts)
      for (const Tensor& t : {p.master, p.exp_avg, p.exp_avg_sq}) {
        std::vector<float> values(static_cast<size_t>(n));
        stream->copy(values.data(), t.data, n * 4);
        stream->synchronize();
        all.insert(all.end(), values.begin(), values.end());
      }
    results.push_back(all);
  }
  CHECK(launches == std::vector<int64_t>{buckets, 1});
  const bool same = results[0] == results[1];
  CHECK(same);
}
#endif

TEST_CASE("small tensor ops") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] : kShapes) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto x = w.random(t, {rows, cols}), y = w.random(t, {rows, cols}), bias = w.random(t, {cols});
      const auto narrow = w.blank(DType::bf16, {rows, cols}), zero = w.blank(t, {rows, cols});
      const auto sums = w.random(wide(t), {cols}), fresh = w.blank(wide(t), {cols});
      const auto total = w.of(DType::f64, {1}, [](int64_t) { return 0.25; });
      const auto normal = w.blank(t, {rows, cols}), value = w.blank(t, {rows, cols});
      w.check([&](Stream& s, const Twin::At& at) {
        fill_zero(s, at(zero));
        cast(s, at(narrow), at(x));
        add_to(s, at(y), at(x));
        scale_by(s, at(y), 1.0 / 3);
        add_bias(s, at(y), at(bias));
        sum_rows(s, at(sums), at(x), true);
        sum_rows(s, at(fresh), at(x), false);
        sum_squares(s, at(total), at(x));
        fill_normal(s, at(normal), 7, 11, 3, 0.5, 2);
        fill_value(s, at(value), 1.5);
      });
    }
}

TEST_CASE("sums of columns over several chunks of rows, whole batches of rows or not") {
  if (!have_cuda()) return;
  // Strips of columns with and without packs, the last one not full; chunks of one batch of rows and of more.
  const std::pair<int64_t, int64_t> shapes[] = {{150, 264}, {200, 37}, {150, 6401}};
  for (DType t : kFloats)
    for (const auto& [rows, cols] : shapes) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto x = w.random(t, {rows, cols});
      const auto added = w.random(wide(t), {cols}), fresh = w.blank(wide(t), {cols});
      w.check([&](Stream& s, const Twin::At& at) {
        sum_rows(s, at(added), at(x), true);
        sum_rows(s, at(fresh), at(x), false);
      });
    }
}

TEST_CASE("ops on elements that begin in the middle of 16 bytes") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    CAPTURE(dtype_name(t));
    const int64_t rows = 9, cols = 64, n = rows * cols;
    Twin w(t);
    const auto x = w.random(t, {n + 1}), y = w.random(t, {n + 1}), bias = w.random(t, {cols + 1});
    const auto narrow = w.blank(DType::bf16, {n + 1}), sums = w.random(wide(t), {cols + 1});
    const auto total = w.of(DType::f64, {1}, [](int64_t) { return 0.25; });
    const auto gelu = w.blank(t, {n + 1}), rotated = w.random(t, {n + 1});
    const auto table = w.random(DType::f32, {rows, 8, 2});
    w.check([&](Stream& s, const Twin::At& at) {
      const auto part = [&](Twin::Id id, Shape shape) { return at(id).flat(1, shape); };
      cast(s, part(narrow, {n}), part(x, {n}));
      add_to(s, part(y, {n}), part(x, {n}));
      scale_by(s, part(y, {n}), 1.0 / 3);
      add_bias(s, part(y, {rows, cols}), part(bias, {cols}));
      sum_rows(s, part(sums, {cols}), part(x, {rows, cols}), true);
      sum_squares(s, at(total), part(x, {n}));
      gelu_forward(s, part(gelu, {n}), part(x, {n}));
      RowMap map;
      map.seq = rows;
      rope(s, part(rotated, {rows, cols}), at(table), map, {4, 16}, false);
    });
  }
}

TEST_CASE("sums of squares of several tensors equal one after the other, totals that come again too") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    CAPTURE(dtype_name(t));
    Twin w(t);
    std::vector<Twin::Id> x;
    for (int64_t i = 0; i < 105; ++i) x.push_back(w.random(t, {i == 7 ? 9000 : i % 11 * i + 1}));
    const auto totals = w.of(DType::f64, {40}, [](int64_t i) { return 0.25 * static_cast<double>(i); });
    w.check([&](Stream& s, const Twin::At& at) {
      std::vector<SquaresOf> parts;  // more than a launch takes
      for (size_t i = 0; i < x.size(); ++i) parts.push_back({at(x[i]), static_cast<int64_t>(i / 3 % 33)});
      parts.push_back({at(x[5]).flat(0, {0}), 2});
      sum_squares(s, at(totals), parts);
    });
  }
}

TEST_CASE("dropout and residual addition drop the same elements") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{6, 37}, {8, 64}, {4, 72}}) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto x = w.random(t, {rows, cols}), delta = w.random(t, {rows, cols});
      const auto y = w.blank(t, {rows, cols}), sum = w.blank(t, {rows, cols}), cut = w.blank(t, {rows, cols});
      const auto samples = w.of(DType::i64, {2}, [](int64_t i) { return 100 + 7 * i; });
      w.check([&](Stream& s, const Twin::At& at) {
        Dropout d;
        d.p = 0.3, d.seed = 5, d.stream = 9;
        d.sample_index = at(samples);
        d.rows.seq = rows / 2;
        dropout(s, at(y), at(x), d);
        d.part = 1, d.parts = 3;  // columns of a row that ranks share
        dropout(s, at(cut), at(x), d);
        residual_add(s, at(sum), at(x), at(delta), d);
      });
    }
}

TEST_CASE("unbiased pruning keeps the same elements in full rows and in a range of columns") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{8, 37}, {12, 64}, {4, 1}, {0, 64}}) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto dy = w.random(t, {rows, cols}), all = w.blank(t, {rows, cols}),
                 some = w.random(t, {rows, cols});
      const auto samples = w.of(DType::i64, {2}, [](int64_t i) { return 100 + 7 * i; });
      w.check([&](Stream& s, const Twin::At& at) {
        RowRandom random;
        random.seed = 5, random.stream = 9;
        random.sample_index = at(samples);
        random.rows.seq = std::max<int64_t>(rows / 2, 1);
        prune_unbiased(s, at(all), at(dy), random, {0, cols});
        random.part = 1, random.parts = 3;  // a parameter's columns, which ranks share
        prune_unbiased(s, at(some), at(dy), random, {cols / 3, cols / 2});
      });
    }
}

TEST_CASE("embeddings and positions: repeated tokens, other parts of the vocabulary, padding rows") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (int64_t cols : {37, 64}) {
      CAPTURE(dtype_name(t), cols);
      const int64_t rows = 40, vocab = 20;
      Twin w(t);
      const auto tokens = w.of(DType::i32, {rows}, [](int64_t i) { return i * i % 20; });
      const auto table = w.random(t, {10, cols}), positions = w.random(t, {10, cols}),
                 dy = w.random(t, {rows, cols});
      const auto y = w.blank(t, {rows, cols}), plain = w.blank(t, {rows, cols});
      const auto dtable = w.random(wide(t), {10, cols}), fresh = w.blank(wide(t), {10, cols});
      const auto dpos = w.blank(wide(t), {10, cols});
      const VocabPart part{12, 8, vocab};  // two rows of the table are padding
      RowMap map;
      map.seq = 10;
      w.check([&](Stream& s, const Twin::At& at) {
        embedding_forward(s, at(y), at(tokens), at(table), at(positions), map, part);
        embedding_forward(s, at(plain), at(tokens), at(table), {}, map, part);
        position_forward(s, at(plain), at(positions), map);
        embedding_backward(s, at(dtable), at(dy), at(tokens), part, true);
        embedding_backward(s, at(fresh), at(dy), at(tokens), part, false);
        position_backward(s, at(dpos), at(dy), map, false);
      });
    }
}

TEST_CASE("the embedding's gradient adds rows in the order of their tokens, to the bit") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const int64_t rows : {1, 33, 5000})
      for (const int64_t vocab : {1, 3000, 70000}) {
        CAPTURE(dtype_name(t), rows, vocab);
        const int64_t cols = 8, first = vocab / 5, own = vocab - 2 * first;
        Twin w(t);
        // A third of the tokens is one, the others are spread over all of the vocabulary.
        const auto tokens = w.of(DType::i32, {rows}, [&](int64_t i) {
          return i % 3 == 0 ? first : (i * i * 7919 + i * 104729) % vocab;
        });
        const auto dy = w.random(t, {rows, cols}), table = w.random(wide(t), {own, cols}),
                   fresh = w.blank(wide(t), {own, cols}), positions = w.random(wide(t), {70, cols});
        RowMap map;
        map.seq = 61, map.first_row = 17;
        w.check(
            [&](Stream& s, const Twin::At& at) {
              embedding_backward(s, at(table), at(dy), at(tokens), {first, own, vocab}, true);
              embedding_backward(s, at(fresh), at(dy), at(tokens), {first, own, vocab}, false);
              position_backward(s, at(positions), at(dy), map, true);
            },
            1e-12);
      }
}

TEST_CASE("rotary embedding and back") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    CAPTURE(dtype_name(t));
    Twin w(t);
    const int64_t heads = 3, dim = 10, rows = GENERATE(14, 0);
    const auto qkv = w.random(t, {rows, 5 * dim}), other = w.random(t, {rows, 5 * dim});
    const auto table = w.random(DType::f32, {7, dim / 2, 2}), part = w.random(DType::f32, {7, 3, 2});
    RowMap map;
    map.seq = 7;
    w.check([&](Stream& s, const Twin::At& at) {
      rope(s, at(qkv), at(table), map, {heads, dim}, false);
      rope(s, at(qkv), at(part), map, {heads, dim}, false);           // 6 of 10 channels
      rope(s, at(qkv), at(part), map, {heads, dim, 4, true}, false);  // the last 6, in pairs of neighbours
      rope(s, at(other), at(table), map, {heads, dim}, true);
    });
  }
  // Packs: more heads than a thread rotates, and some channels of a head, as halves and as neighbours.
  for (DType t : kFloats) {
    CAPTURE(dtype_name(t));
    Twin w(t);
    const int64_t heads = 11, dim = 48, rows = GENERATE(14, 0), width = (heads + 2) * dim;
    const auto whole = w.random(t, {rows, width}), part = w.random(t, {rows, width});
    const auto table = w.random(DType::f32, {9, dim / 2, 2}), narrow = w.random(DType::f32, {9, 8, 2});
    const auto ids = w.of(DType::i32, {rows}, [](int64_t i) { return i * 5 % 9; });
    w.check([&](Stream& s, const Twin::At& at) {
      RowMap map;
      map.seq = 7, map.total = 9, map.ids = at(ids);
      rope(s, at(whole), at(table), map, {heads, dim}, false);
      rope(s, at(whole), at(table), map, {1, dim}, true);
      rope(s, at(part), at(narrow), map, {heads, dim, 32, true}, false);
      rope(s, at(part), at(narrow), map, {heads, dim, 16}, true);
    });
  }
}

TEST_CASE("norms forward and backward, with the residual and dropout fused in") {
  if (!have_cuda()) return;
  std::vector<std::pair<int64_t, int64_t>> shapes(std::begin(kShapes), std::end(kShapes));
  // Two and four packs a thread, and rows that registers do not hold.
  shapes.insert(shapes.end(), {{40, 2304}, {2, 4104}, {2, 16392}});
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType t : kFloats)
      for (const auto& [rows, cols] : shapes) {
        CAPTURE(dtype_name(t), rows, cols, kind == NormKind::rms);
        Twin w(t);
        const bool layer = kind == NormKind::layer;
        const auto x = w.random(t, {rows, cols}), delta = w.random(t, {rows, cols}),
                   weight = w.random(t, {cols});
        const auto bias = w.random(t, {cols}), dy = w.random(t, {rows, cols});
        const auto sum = w.blank(t, {rows, cols}), y = w.blank(t, {rows, cols}),
                   y2 = w.blank(t, {rows, cols});
        const auto mean = w.blank(wide(t), {rows}), rstd = w.blank(wide(t), {rows});
        const auto dx = w.random(t, {rows, cols}), dx2 = w.blank(t, {rows, cols});
        const auto dw = w.random(wide(t), {cols}), db = w.random(wide(t), {cols});
        const auto dw2 = w.blank(wide(t), {cols}), db2 = w.blank(wide(t), {cols});
        const auto samples = w.of(DType::i64, {1}, [](int64_t) { return 3; });
        w.check([&](Stream& s, const Twin::At& at) {
          NormForward f;
          f.kind = kind;
          f.x = at(x), f.delta = at(delta), f.sum = at(sum), f.y = at(y), f.weight = at(weight);
          f.rstd = at(rstd);
          if (layer) f.bias = at(bias), f.mean = at(mean);
          f.dropout.p = 0.25, f.dropout.seed = 2, f.dropout.stream = 3, f.dropout.sample_index = at(samples);
          f.dropout.rows.seq = rows;
          norm_forward(s, f);
          NormBackward b;
          b.kind = kind;
          b.dy = at(dy), b.x = at(sum), b.weight = at(weight), b.rstd = at(rstd);
          if (layer) b.mean = at(mean), b.dbias = at(db);
          b.dx = at(dx), b.dweight = at(dw), b.accumulate = true;
          norm_backward(s, b);
          b.dx = at(dx2), b.dweight = at(dw2), b.accumulate = false, b.first = true, b.weight_offset = 1;
          if (layer) b.dbias = at(db2);
          norm_backward(s, b);
          f.delta = f.sum = {}, f.dropout = {}, f.y = at(y2), f.weight_offset = 1;
          norm_forward(s, f);
        });
      }
}

TEST_CASE("norms of rows whose columns ranks share, forward and backward") {
  if (!have_cuda()) return;
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType t : kFloats) {
      CAPTURE(dtype_name(t), kind == NormKind::rms);
      const bool layer = kind == NormKind::layer;
      const int64_t rows = 5, cols = 37, count = norm_moment_count(kind);
      Twin w(t);
      const auto x = w.random(t, {rows, cols}), weight = w.random(t, {cols}), bias = w.random(t, {cols});
      const auto dy = w.random(t, {rows, cols}), y = w.blank(t, {rows, cols});
      const auto moments =
          w.of(wide(t), {2 * rows, count}, [](int64_t i) { return 0.5 + 0.1 * static_cast<double>(i); });
      const auto mean = w.blank(wide(t), {rows}), rstd = w.blank(wide(t), {rows});
      const auto dots = w.blank(wide(t), {rows, count}), dx = w.random(t, {rows, cols});
      const auto dw = w.random(wide(t), {cols}), db = w.random(wide(t), {cols});
      w.check([&](Stream& s, const Twin::At& at) {
        norm_moments(s, at(moments).narrow(0, rows), at(x), kind);
        NormApply f;
        f.kind = kind;
        f.x = at(x), f.moments = at(moments), f.weight = at(weight), f.y = at(y), f.rstd = at(rstd);
        if (layer) f.bias = at(bias), f.mean = at(mean);
        f.weight_offset = layer ? 0 : 1;
        norm_apply(s, f);
        NormCutBackward b;
        b.weight_offset = f.weight_offset;
        b.kind = kind;
        b.dy = at(dy), b.x = at(x), b.weight = at(weight), b.rstd = at(rstd), b.dots = at(dots),
        b.dx = at(dx);
        b.dweight = at(dw), b.accumulate = true, b.all_cols = 2 * cols;
        if (layer) b.mean = at(mean), b.dbias = at(db);
        norm_cut_dots(s, b);
        norm_cut_backward(s, b);
      });
    }
}

TEST_CASE("parts of matrices, more than one launch holds, converted") {
  if (!have_cuda()) return;
  Twin w(DType::f32);
  const auto in = w.random(DType::f32, {20, 30});
  const auto out = w.of(DType::bf16, {40, 25}, [](int64_t) { return 1; }),
             same = w.of(DType::f32, {20, 30}, [](int64_t) { return 2; });
  w.check([&](Stream& s, const Twin::At& at) {
    std::vector<CopyRectangle> parts;
    for (int64_t i = 0; i < 20; ++i) parts.push_back({1, 7 + i % 3, i, i, 2 * i, 3});
    parts.push_back({0, 4, 0, 0, 0, 0});
    copy_rectangles(s, at(out), at(in), parts);
    copy_rectangles(s, at(same), at(in), {{20, 15, 0, 15, 0, 0}});
  });
}

TEST_CASE("merging attention over different keys, none seen by one of them") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64}) {
    CAPTURE(dtype_name(t));
    Twin w(t);
    const auto none = [](int64_t i) { return i % 5 == 0 ? -INFINITY : 0.3 * static_cast<double>(i % 7); };
    const auto out = w.random(t, {8, 3 * 10}), block = w.random(t, {8, 3 * 10});
    const auto lse = w.random(t, {2, 3, 4}), other = w.of(t, {2, 3, 4}, none);
    w.check(
        [&](Stream& s, const Twin::At& at) { merge_attention(s, at(out), at(lse), at(block), at(other)); });
  }
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("negative control: one element of a buffer that differs on CUDA is told", "[!shouldfail]") {
  Twin w(DType::f32);
  const auto x = w.random(DType::f32, {300});
  w.check([&](Stream& s, const Twin::At& at) {
    if (s.device() == DeviceKind::cuda) scale_by(s, at(x).narrow(299, 1), 1.0001);
  });
}
#endif
