// Bytes of losses over a vocabulary that ranks share, of dropout and of what moves or fills tensors.
#include <catch2/catch.hpp>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/dropout.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/group_codes.h"
#include "kernels/elementwise/magnitude.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/distillation.h"
#include "kernels/loss/preference.h"
#include "kernels/loss/row_scores.h"
#include "kernels/loss/sample_labels.h"
#include "kernels/loss/top_logits.h"
#include "kernels/matmul/nf4.h"
#include "kernels/matmul/sparse/prune_unbiased.h"
#include "tests/cuda_traffic/accesses.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("bytes: cross-entropy over a vocabulary that ranks share") {
  const int64_t rows = 8, vocab = 4096, ranks = 4;
  const VocabColumns part{vocab, vocab};  // the second rank's
  const auto targets = [=](Operands& o) {
    return o.make(kI32, {rows}, [=](int64_t i) { return vocab + i * 11; });
  };
  check_bytes(
      [=](Operands& o) {
        const Tensor stats = o.make(kF32, {rows, 3}), logits = o.make(kF32, {rows, vocab}), t = targets(o);
        return [=](Stream& s) { cross_entropy_stats(s, stats, logits, t, part); };
      },
      {.floor = rows * vocab * 4 + rows * 12,
       .unpriced = rows * 4,
       .repeated = /*the target's logit*/ rows * 4});
  for (const bool training : {true, false})
    check_bytes(
        [=](Operands& o) {
          const Tensor loss = o.make(kF64, {1}), logits = o.make(kF32, {rows, vocab}), t = targets(o),
                       stats = o.make(kF32, {ranks * rows, 3});
          const Tensor d = training ? o.make(kBf16, {rows, vocab}) : Tensor();
          return [=](Stream& s) { cross_entropy_sharded(s, loss, d, logits, t, stats, part, 0.5); };
        },
        // A row's statistics of all ranks twice, and its target, by each of 512 threads.
        {.floor = rows * (ranks * 12 + (training ? vocab * 6 : 0)),
         .unpriced = rows * 4 + 16,
         .repeated = 512 * rows * (ranks * 16 + 4) - rows * (ranks * 12 + 4),
         .scratch = /*losses*/ rows * 16});
  check_bytes(
      [=](Operands& o) {
        const Tensor logits = o.make(kF32, {rows, vocab});
        return [=](Stream& s) { soft_cap_logits(s, logits, 30); };
      },
      {.floor = rows * vocab * 8});
  check_bytes(
      [=](Operands& o) {
        const Tensor labels = o.make(kI32, {rows}), logits = o.make(kF32, {rows, vocab}),
                     t = o.make(kI32, {rows}, [](int64_t) { return 1; }), stats = o.make(kF32, {rows, 3});
        const VocabColumns all{0, vocab};
        RowRandom random;
        random.sample_index = o.make(DType::i64, {1}, [](int64_t) { return 0; });
        random.rows.seq = rows;
        return [=](Stream& s) {
          cross_entropy_stats(s, stats, logits, t, all);
          sample_labels(s, labels, logits, t, stats, 0, all, random);
        };
      },
      // The statistics' pass, and then half of a row in the mean as the plan has it, which is what a CPU
      // reads: the kernel reads a row, a sixteenth of it, and so on. Here the statistics have read the logits
      // before.
      {.floor = rows * (vocab * 4 + 12) + rows * (vocab * 2 + 20),
       .unpriced = 8 - rows * (vocab * 2 + 4),
       .repeated = rows * (vocab * 4 + vocab / 4) +
                   /*target and largest logit by each thread*/ 512 * rows * 8 + rows * 4,
       .more = /*the last few logits, by one thread*/ 1024});
}

TEST_CASE("bytes: distillation over a vocabulary that ranks share") {
  const int64_t rows = 8, vocab = 4096, ranks = 4, stat = kDistillationStats * 4;
  const VocabColumns part{vocab, vocab};  // the second rank's
  const auto targets = [=](Operands& o) {
    return o.make(kI32, {rows}, [=](int64_t i) { return vocab + i * 11; });
  };
  check_bytes(
      [=](Operands& o) {
        const Tensor stats = o.make(kF32, {rows, kDistillationStats}), t = targets(o),
                     student = o.make(kF32, {rows, vocab}), teacher = o.make(kF32, {rows, vocab});
        return [=](Stream& s) { distillation_stats(s, stats, student, teacher, t, part, 2); };
      },
      {.floor = rows * (vocab * 8 + stat),
       .unpriced = rows * 4,
       .repeated = /*the target's logit, and the target by each thread*/ rows * 4 + 511 * rows * 4});
  check_bytes(
      [=](Operands& o) {
        const Tensor sums = o.make(kF64, {2}), stats = o.make(kF32, {ranks * rows, kDistillationStats}),
                     t = targets(o), student = o.make(kF32, {rows, vocab}),
                     teacher = o.make(kF32, {rows, vocab}), d = o.make(kBf16, {rows, vocab});
        return [=](Stream& s) {
          distillation(s, sums.flat(0, {1}), sums.flat(1, {1}), d, student, teacher, t, stats, part, {0.5, 2},
                       0.5);
        };
      },
      // A row's statistics by one thread, two of them twice; its target by that and each of 512 others,
      // which read six numbers of the row.
      {.floor = rows * (vocab * 10 + ranks * stat),
       .unpriced = rows * 4 + 32,
       .repeated = 512 * rows * 4 + rows * ranks * 2 * 4,
       .scratch = rows * (64 + 512 * 48) + /*losses*/ 2 * rows * 16});
}

TEST_CASE("bytes: rows of a teacher's largest logits") {
  const int64_t rows = 8, vocab = 4096, ranks = 4, k = 16, stat = kRestStats * 4;
  const VocabColumns part{vocab, vocab};  // the second rank's
  const auto targets = [=](Operands& o) { return o.make(kI32, {rows}, [=](int64_t i) { return i; }); };
  check_bytes(
      [=](Operands& o) {
        const Tensor teacher = o.make(kF32, {rows, vocab}), stats = o.make(kF32, {rows, kRestStats}),
                     student = o.make(kF32, {rows, vocab}), values = o.make(kF32, {rows, k}), t = targets(o),
                     ids = o.make(kI32, {rows, k}, [=](int64_t i) { return vocab + i; });
        return [=](Stream& s) { spread_top_logits(s, teacher, stats, student, ids, values, t, part, 2); };
      },
      {.floor = rows * (vocab * 12 + stat + k * 8),
       .unpriced = rows * 4,
       .repeated =
           /*logits over what was there, and the target by each thread*/ rows * k * 4 + 511 * rows * 4});
  check_bytes(
      [=](Operands& o) {
        const Tensor teacher = o.make(kF32, {rows, vocab}), student = o.make(kF32, {rows, vocab}),
                     rest = o.make(kF32, {rows}), stats = o.make(kF32, {ranks * rows, kRestStats}),
                     t = targets(o);
        return [=](Stream& s) { fill_rest_logits(s, teacher, student, rest, t, stats, part, 2); };
      },
      {.floor = rows * (vocab * 12 + 4 + ranks * stat),
       .unpriced = rows * 4,
       .repeated = /*the target by each thread*/ 511 * rows * 4,
       .more = /*largest logits of ranks that have others*/ rows * ranks * 4});
}

TEST_CASE("bytes: losses of preference pairs") {
  const int64_t rows = 512, ranks = 4, texts = 8, length = rows / texts;
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kF64, {rows}), stats = o.make(kF32, {ranks * rows, 3}),
                     targets = o.make(kI32, {rows}, [](int64_t i) { return i; });
        return [=](Stream& s) { row_log_probabilities(s, out, stats, targets); };
      },
      {.floor = rows * (8 + ranks * 12 + 4), .repeated = /*largest logits*/ rows * ranks * 4});
  // Each thread looks at its row's text and that before; the first of a text walks to the next one.
  const int64_t walks = (rows + rows - 1 + texts - 1) * 4;
  enum { sums_alone, of_pairs, of_examples };
  for (const int losses : {sums_alone, of_pairs, of_examples})
    check_bytes(
        [=](Operands& o) {
          const Tensor labels = losses == of_examples ? o.make(kI32, {texts / 2}) : Tensor();
          PreferenceLoss loss;
          if (losses == of_examples) loss.kind = PreferenceKind::kto;
          const Tensor totals = o.make(kF64, {PreferenceTotals::count}), weights = o.make(kF64, {texts}),
                       sums = o.make(kF64, {texts, 2}), reference = o.make(kF64, {texts}),
                       values = o.make(kF64, {rows}),
                       of = o.make(kI32, {rows}, [=](int64_t i) { return i / length; }),
                       targets = o.make(kI32, {rows}, [](int64_t i) { return i; });
          return [=](Stream& s) {
            sum_texts(s, sums, values, of, targets);
            if (losses) preference_pairs(s, totals, weights, sums, reference, labels, values, loss, 0, true);
          };
        },
        {.floor =
             texts * 16 + rows * 16 + (losses ? texts * 32 : 0) + (losses == of_examples ? texts / 2 * 4 : 0),
         .unpriced = losses ? 2 * 8 * PreferenceTotals::count : 0,
         .repeated = walks + (losses ? /*weights, first as 0*/ texts * 8 : 0)});
}

TEST_CASE("bytes: scores of rows") {
  // Every row has a target; others read and write less.
  const int64_t rows = 32, cols = 512, n = rows * cols, texts = 4;
  const auto targets_of = [=](Operands& o) { return o.make(kI32, {rows}, [](int64_t) { return 1; }); };
  const auto gradient_of = [=](Operands& o) {
    const Tensor of = o.make(kI32, {rows}, [=](int64_t i) { return i % texts; });
    return ScoreGradient{
        .targets = targets_of(o), .texts = of, .weights = o.make(kF64, {texts}), .scale = 0.5};
  };
  check_bytes(
      [=](Operands& o) {
        const Tensor values = o.make(kF64, {rows}), x = o.make(kBf16, {rows, cols}),
                     weight = o.make(kBf16, {1, cols}), targets = targets_of(o);
        return [=](Stream& s) { row_scores(s, values, x, weight, targets); };
      },
      {.floor = n * 2 + rows * 12,
       .unpriced = cols * 2,
       .repeated = (rows - 1) * cols * 2 + /*target by each thread*/ 255 * rows * 4});
  // Each thread of a row, which has eight columns, reads target, text and weight.
  const int64_t threads = cols / 8, scales = (threads - 1) * rows * 8 + (threads * rows - texts) * 8;
  check_bytes(
      [=](Operands& o) {
        const Tensor dx = o.make(kBf16, {rows, cols}), weight = o.make(kBf16, {1, cols});
        const ScoreGradient gradient = gradient_of(o);
        return [=](Stream& s) { row_scores_backward(s, dx, weight, gradient); };
      },
      {.floor = n * 2 + rows * 8,
       .unpriced = /*weights*/ cols * 2 + texts * 8,
       .repeated = (rows - 1) * cols * 2 + scales});
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kF32, {1, cols}), x = o.make(kBf16, {rows, cols});
        const ScoreGradient gradient = gradient_of(o);
        return [=](Stream& s) { row_scores_weight(s, out, x, gradient, false); };
      },
      {.floor = n * 2 + rows * 8 + cols * 4,
       .unpriced = texts * 8,
       .repeated = scales,
       .scratch = /*one chunk of rows*/ 2 * cols * 4});
}

TEST_CASE("bytes: codes of groups of channels") {
  const int64_t rows = 32, cols = 512, n = rows * cols, groups = n / kGroupChannels;
  for (DType code : {DType::u8, DType::f8e4m3}) {
    const auto made = [=](Operands& o) {
      return GroupCodes{o.make(code, {rows, cols}), o.make(DType::f32, {rows, cols / kGroupChannels}), 1};
    };
    const bool rounds = code == DType::u8;  // each lane reads the sample of its row
    check_bytes(
        [=](Operands& o) {
          const GroupCodes g = made(o);
          const Tensor x = o.make(kBf16, {rows, cols});
          RowRandom r;
          r.sample_index = o.make(DType::i64, {2}, [](int64_t i) { return i; });
          r.rows.seq = rows / 2;
          return [=](Stream& s) { encode_groups(s, g, x, r); };
        },
        {.floor = n * 2 + n + groups * 4,
         .unpriced = rounds ? 16 : 0,
         .repeated = rounds ? n / 4 * 8 - 16 : 0});
    check_bytes(
        [=](Operands& o) {
          const GroupCodes g = made(o);
          const Tensor x = o.make(kBf16, {rows, cols});
          return [=](Stream& s) { decode_groups(s, x, g); };
        },
        {.floor = n * 2 + n + groups * 4, .repeated = /*the scale, for each lane*/ groups * 31 * 4});
  }
}

TEST_CASE("bytes: dropout, sums and fills") {
  const int64_t rows = 32, cols = 512, n = rows * cols;
  check_bytes(
      [=](Operands& o) {
        const Tensor x = o.make(kBf16, {rows, cols}), y = o.make(kBf16, {rows, cols});
        Dropout d;
        d.p = 0.1, d.sample_index = o.make(DType::i64, {2}, [](int64_t i) { return i; });
        d.rows.seq = rows / 2;
        return [=](Stream& s) { dropout(s, y, x, d); };
      },
      {.floor = 2 * n * 2, .unpriced = 16, .repeated = /*the sample of each call's row*/ n / 4 * 8 - 16});
  check_bytes(
      [=](Operands& o) {
        const Tensor dy = o.make(kBf16, {rows, cols}), out = o.make(kBf16, {rows, cols});
        RowRandom random;
        random.sample_index = o.make(DType::i64, {2}, [](int64_t i) { return i; });
        random.rows.seq = rows / 2;
        return [=](Stream& s) { prune_unbiased(s, out, dy, random, {0, cols}); };
      },
      {.floor = 2 * n * 2, .unpriced = 16, .repeated = /*the sample of each call's row*/ n / 8 * 8 - 16});
  check_bytes(
      [=](Operands& o) {
        const Tensor y = o.make(kBf16, {rows, cols}), bias = o.make(kBf16, {cols});
        return [=](Stream& s) { add_bias(s, y, bias); };
      },
      {.floor = 2 * n * 2, .unpriced = cols * 2, .repeated = (rows - 1) * cols * 2});
  check_bytes(
      [=](Operands& o) {
        const Tensor y = o.make(kBf16, {n});
        return [=](Stream& s) { scale_by(s, y, 0.5); };
      },
      {.floor = 2 * n * 2});
  for (const bool normal : {true, false})
    check_bytes(
        [=](Operands& o) {
          const Tensor y = o.make(kBf16, {n});
          return [=](Stream& s) { normal ? fill_normal(s, y, 1, 2, 0, 0, 1) : fill_value(s, y, 1); };
        },
        {.floor = n * 2});
}

TEST_CASE("bytes: magnitudes of rows") {
  const int64_t rows = 32, cols = 512, n = rows * cols;
  check_bytes(
      [=](Operands& o) {
        const Tensor squares = o.make(kF32, {rows, 2}), w = o.make(kBf16, {rows, cols}),
                     v = o.make(kBf16, {rows, cols});
        return [=](Stream& s) { row_squares(s, squares, w, v); };
      },
      {.floor = n * 4 + rows * 8});
  check_bytes(
      [=](Operands& o) {
        const Tensor factors = o.make(kF32, {rows, 2}), squares = o.make(kF32, {rows, 2}),
                     change = o.make(kBf16, {rows});
        return [=](Stream& s) { magnitude_factors(s, factors, squares, change); };
      },
      {.floor = rows * 18});
  check_bytes(
      [=](Operands& o) {
        const Tensor y = o.make(kBf16, {rows, cols}), x = o.make(kBf16, {rows, cols}),
                     factors = o.make(kF32, {cols, 2});
        return [=](Stream& s) { scale_columns(s, y, x, factors); };
      },
      {.floor = n * 4, .unpriced = cols * 4, .repeated = (rows - 1) * cols * 4});
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kF32, {cols}), a = o.make(kBf16, {rows, cols}),
                     b = o.make(kBf16, {rows, cols}), factors = o.make(kF32, {cols, 2});
        return [=](Stream& s) { magnitude_gradient(s, out, a, b, factors, false); };
      },
      {.floor = n * 4,
       .unpriced = /*sums, factors*/ cols * 8,
       .repeated = (rows - 1) * cols * 4,
       .scratch = /*one chunk of rows*/ 2 * cols * 4});
}

TEST_CASE("bytes: weights in NF4") {
  const int64_t rows = 16, cols = 512, n = rows * cols;
  check_bytes(
      [=](Operands& o) {
        const Tensor w = o.make(kBf16, {rows, cols}), codes = o.make(DType::u8, {rows, cols / kNf4Pair}),
                     absmax = o.make(kF32, {rows, cols / kNf4Block});
        return [=](Stream& s) { nf4_dequantize(s, w, {codes, absmax}); };
      },
      {.floor = n * 2 + n / 2 + n / 16, .repeated = 7 * n / 16});
}

TEST_CASE("bytes: rectangles between matrices") {
  const int64_t rows = 64, cols = 256;
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kBf16, {rows, 2 * cols}), in = o.make(kF32, {2 * rows, cols});
        return [=](Stream& s) { copy_rectangles(s, out, in, {{rows, cols, rows, 0, 0, cols}}); };
      },
      {.floor = rows * cols * 6});
}

TEST_CASE("bytes: gated activations that are no SwiGLU") {
  const int64_t rows = 16, cols = 512, matrix = rows * cols * 2;
  for (const bool clamped : {true, false}) {
    check_bytes(
        [=](Operands& o) {
          const Tensor y = o.make(kBf16, {rows, cols}), x = o.make(kBf16, {rows, 2 * cols});
          return [=](Stream& s) { clamped ? clamped_swiglu_forward(s, y, x) : geglu_forward(s, y, x); };
        },
        {.floor = 3 * matrix});
    check_bytes(
        [=](Operands& o) {
          const Tensor dy = o.make(kBf16, {rows, cols}), x = o.make(kBf16, {rows, 2 * cols}),
                       d = o.make(kBf16, {rows, 2 * cols});
          return [=](Stream& s) {
            clamped ? clamped_swiglu_backward(s, d, dy, x) : geglu_backward(s, d, dy, x);
          };
        },
        {.floor = 5 * matrix});
  }
}

TEST_CASE("bytes: positions that are learned") {
  const int64_t rows = 64, cols = 256, seq = 32, matrix = rows * cols * 2;
  RowMap map;
  map.seq = seq;
  check_bytes(
      [=](Operands& o) {
        const Tensor y = o.make(kBf16, {rows, cols}), positions = o.make(kBf16, {seq, cols});
        return [=](Stream& s) { position_forward(s, y, positions, map); };
      },
      {.floor = 3 * matrix, .unpriced = -(rows - seq) * cols * 2, .repeated = (rows - seq) * cols * 2});
  check_bytes(
      [=](Operands& o) {
        const Tensor d = o.make(kF32, {seq, cols}), dy = o.make(kBf16, {rows, cols});
        return [=](Stream& s) { position_backward(s, d, dy, map, true); };
      },
      // Rows of a position are sorted in scratch, as those of a token are.
      {.floor = matrix + 2 * seq * cols * 4, .scratch = 42112});
}
