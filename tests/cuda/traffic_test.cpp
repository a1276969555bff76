// Bytes that kernels move, counted access by access on the emulated device, against the floor: each operand
// read or written once. The plan prices ops by the same bytes.
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>

#include "kernels/attention/rope.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/matmul/quantize.h"
#include "kernels/norm/norm.h"
#include "kernels/optimizer/adamw.h"
#include "tests/cuda/operands.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Moved {
  int64_t bytes, wide, narrow;  ///< accesses of 16 bytes, and of fewer
};

/// Bytes that the kernels of `op` moved. Its operands are made before.
Moved moved_by(OnDevice& device, const std::function<void(Stream&)>& op) {
  auto& traffic = cuda::emulated_traffic;
  traffic.clear();
  device.run(op);
  return {traffic.loaded + traffic.stored, traffic.wide, traffic.narrow};
}

/// `floor`: operands once; `besides`: what kernels load again from the caches or keep in scratch, which no
/// plan counts. At most `narrow` accesses are of fewer than 16 bytes.
void check_traffic(const Made& made, int64_t floor, int64_t besides, int64_t narrow) {
  OnDevice device;
  OnMeta meta;
  const auto on_device = made(device), on_meta = made(meta);
  const Moved moved = moved_by(device, on_device);
  CHECK(moved.bytes == floor + besides);
  CHECK(moved.narrow <= narrow);
  CHECK(meta.bytes(on_meta) == floor);
}

}  // namespace

TEST_CASE("norms move each row once, forward with the residual and backward with the weight's gradient") {
  const int64_t rows = 64;
  for (const int64_t cols : {2048, 1600, 4096}) {
    CAPTURE(cols);
    const int64_t matrix = rows * cols * 2;
    check_traffic(
        [&](Operands& o) {
          NormForward f;
          f.x = o.make(kBf16, {rows, cols}), f.delta = o.make(kBf16, {rows, cols});
          f.sum = o.make(kBf16, {rows, cols}), f.y = o.make(kBf16, {rows, cols});
          f.weight = o.make(kBf16, {cols}), f.rstd = o.make(kF32, {rows});
          return [f](Stream& s) { norm_forward(s, f); };
        },
        4 * matrix, /*the weight a row*/ matrix + rows * 4, rows);
    const int64_t chunks = rows / 16, threads = (cols / 8 + 31) / 32 * 32;
    for (const bool first : {true, false})
      check_traffic(
          [&](Operands& o) {
            NormBackward b;
            b.dy = o.make(kBf16, {rows, cols}), b.x = o.make(kBf16, {rows, cols});
            b.dx = o.make(kBf16, {rows, cols}), b.weight = o.make(kBf16, {cols});
            b.rstd = o.make(kF32, {rows}), b.dweight = o.make(kF32, {cols}), b.first = first;
            return [b](Stream& s) { norm_backward(s, b); };
          },
          (first ? 3 : 4) * matrix,
          // A row's rstd by each thread; of a chunk the weight and its part of the gradient, written and
          // read.
          rows * threads * 4 + chunks * cols * (2 + 4 + 4) + cols * 4, rows * threads + chunks * cols + cols);
  }
}

TEST_CASE("rotary embedding moves queries and keys once, and angles once a lane of heads of a warp") {
  const int64_t rows = 48, heads = 40, kv = 8, dim = 64, width = (heads + kv) * dim;
  check_traffic(
      [&](Operands& o) {
        const Tensor qkv = o.make(kBf16, {rows, width}), table = o.make(kF32, {rows, dim / 2, 2});
        RowMap map;
        map.seq = rows;
        return [=](Stream& s) { rope(s, qkv, table, map, {heads, dim}, false); };
      },
      2 * rows * heads * dim * 2, rows * dim * 4 * /*lanes*/ 8, 0);
}

TEST_CASE("SwiGLU moves gate, up and their gradients once") {
  const int64_t rows = 16, cols = 8192, matrix = rows * cols * 2;
  check_traffic(
      [&](Operands& o) {
        const Tensor y = o.make(kBf16, {rows, cols}), gate_up = o.make(kBf16, {rows, 2 * cols});
        return [=](Stream& s) { swiglu_forward(s, y, gate_up); };
      },
      3 * matrix, 0, 0);
  check_traffic(
      [&](Operands& o) {
        const Tensor dy = o.make(kBf16, {rows, cols}), gate_up = o.make(kBf16, {rows, 2 * cols}),
                     d = o.make(kBf16, {rows, 2 * cols});
        return [=](Stream& s) { swiglu_backward(s, d, dy, gate_up); };
      },
      5 * matrix, 0, 0);
}

TEST_CASE("GELU moves its input, output and gradients once in both forms, rows of odd lengths too") {
  for (const GeluForm form : {GeluForm::tanh, GeluForm::erf})
    for (const int64_t n : {int64_t{16} * 6400, int64_t{16} * 6400 + 3}) {
      CAPTURE(n, form == GeluForm::erf);
      const int64_t ends = n % 8;
      check_traffic(
          [&](Operands& o) {
            const Tensor y = o.make(kBf16, {n}), x = o.make(kBf16, {n});
            return [=](Stream& s) { gelu_forward(s, y, x, form); };
          },
          2 * n * 2, 0, 2 * ends);
      check_traffic(
          [&](Operands& o) {
            const Tensor dx = o.make(kBf16, {n}), dy = o.make(kBf16, {n}), x = o.make(kBf16, {n});
            return [=](Stream& s) { gelu_backward(s, dx, dy, x, form); };
          },
          3 * n * 2, 0, 3 * ends);
    }
}

TEST_CASE("looking up tokens and positions moves a row of each once, and their sum") {
  const int64_t rows = 64, cols = 1600, vocab = 128, matrix = rows * cols * 2, packs = cols / 8;
  for (const bool with_positions : {false, true}) {
    CAPTURE(with_positions);
    check_traffic(
        [&](Operands& o) {
          const Tensor y = o.make(kBf16, {rows, cols}), table = o.make(kBf16, {vocab, cols});
          const Tensor positions = with_positions ? o.make(kBf16, {32, cols}) : Tensor();
          const Tensor tokens =
              o.make(DType::i32, {rows}, [](int64_t i) { return static_cast<int32_t>(i * 7 % 128); });
          RowMap map;
          map.seq = 32;
          return [=](Stream& s) {
            embedding_forward(s, y, tokens, table, positions, map, {0, vocab, vocab});
          };
        },
        (with_positions ? 3 : 2) * matrix + rows * 4,
        /*the row's token by each thread*/ rows * (packs - 1) * 4, rows * packs);
  }
}

TEST_CASE(
    "cross-entropy moves the logits that a block keeps once, rows of odd lengths too, and others twice") {
  const int64_t rows = 8, blocks = 3;
  for (const int64_t vocab : {int64_t{32768}, int64_t{32771}, kKeptLogits + 16384}) {
    CAPTURE(vocab);
    const auto made = [&](bool training) {
      return [=](Operands& o) {
        const Tensor loss = o.make(DType::f64, {1}), logits = o.make(kF32, {rows, vocab});
        const Tensor d = training ? o.make(kBf16, {rows, vocab}) : Tensor();
        const Tensor targets =
            o.make(DType::i32, {rows}, [](int64_t i) { return static_cast<int32_t>(i * 11); });
        return [=](Stream& s) { cross_entropy(s, loss, d, logits, targets, 0.5); };
      };
    };
    // A row's target and its logit, by each thread where each row has a block, else by one thread and the
    // first row's by each; its loss twice; ends of odd rows one by one.
    const int64_t threads = rows * 512, firsts = blocks * 512 + rows - blocks,
                  ends = vocab % 8 ? rows * 14 : 0;
    check_traffic(made(true), rows * (vocab * 6 + std::max<int64_t>(0, vocab - kKeptLogits) * 4),
                  firsts * 4 + rows * 4 + rows * 16, firsts + 3 * rows + 2 * ends);
    check_traffic(made(false), rows * vocab * 4, threads * 8 + rows * 16, 2 * threads + 2 * rows + ends);
  }
}

TEST_CASE("a loss has the same bits whether or not its logits' gradient is asked for") {
  for (const int64_t vocab : {int64_t{33001}, kKeptLogits + 4099}) {
    CAPTURE(vocab);
    OnDevice o;
    const int64_t rows = 5;
    const Tensor losses = o.make(DType::f64, {2}), logits = o.make(kF32, {rows, vocab}),
                 d = o.make(kBf16, {rows, vocab}),
                 targets = o.make(DType::i32, {rows}, [](int64_t i) { return i; });
    o.run([&](Stream& s) {
      fill_zero(s, losses);
      cross_entropy(s, losses.flat(0, {1}), d, logits, targets, 0.5);
      cross_entropy(s, losses.flat(1, {1}), {}, logits, targets, 0.5);
    });
    const auto of = o.values<double>(losses);
    CHECK(of[0] > 0);
    CHECK(of[0] == of[1]);
  }
}

TEST_CASE("the embedding's gradient moves what its tokens touch, not what the vocabulary has") {
  const int64_t rows = 512, cols = 256;
  const auto run = [&](int64_t vocab, int64_t distinct) {
    OnDevice o;
    const Tensor table = o.make(kF32, {vocab, cols}), dy = o.make(kBf16, {rows, cols});
    const Tensor tokens = o.make(DType::i32, {rows}, [&](int64_t i) {
      return static_cast<int32_t>(i * i % distinct * (vocab / distinct));
    });
    return moved_by(o, [&](Stream& s) { embedding_backward(s, table, dy, tokens, {0, vocab, vocab}, true); });
  };
  const Moved few = run(1024, 64), many = run(16384, 64);
  // Counts of digits are of the vocabulary's root; nothing else grows with it.
  CHECK(few.wide == many.wide);
  std::vector<bool> met(64);
  int64_t runs = 0;
  for (int64_t i = 0; i < rows; ++i)
    if (!met[static_cast<size_t>(i * i % 64)]) met[static_cast<size_t>(i * i % 64)] = true, ++runs;
  CHECK(few.wide == rows * cols * 2 / 16 + 2 * runs * cols * 4 / 16);
  CHECK(many.bytes < 2 * few.bytes);
}

TEST_CASE("casts, sums and updates move each element once") {
  const int64_t rows = 64, cols = 1024, n = rows * cols;
  check_traffic(
      [&](Operands& o) {
        const Tensor from = o.make(kF32, {n}), to = o.make(kBf16, {n});
        return [=](Stream& s) { cast(s, to, from); };
      },
      n * 6, 0, 0);
  check_traffic(
      [&](Operands& o) {
        const Tensor y = o.make(kBf16, {n + 3}), x = o.make(kBf16, {n + 3});
        return [=](Stream& s) { add_to(s, y, x); };
      },
      (n + 3) * 6, 0, 9);
  check_traffic(
      [&](Operands& o) {
        const Tensor total = o.make(DType::f64, {1}), x = o.make(kF32, {n});
        return [=](Stream& s) { sum_squares(s, total, x); };
      },
      n * 4, /*each block's sum, and the total*/ n / 4 / 256 * 16 + 16, n / 4 / 256 * 2 + 2);
  check_traffic(
      [&](Operands& o) {
        const Tensor sums = o.make(kF32, {cols}), x = o.make(kBf16, {4 * rows, cols});
        return [=](Stream& s) { sum_rows(s, sums, x, true); };
      },
      4 * n * 2, /*sums of four chunks of rows*/ 4 * cols * 8 + cols * 8, 4 * cols * 2 + 2 * cols);
  check_traffic(
      [&](Operands& o) {
        const Tensor sums = o.make(kF32, {cols}), dx = o.make(kBf16, {4 * rows, cols}),
                     dy = o.make(kBf16, {4 * rows, cols}), x = o.make(kBf16, {4 * rows, cols});
        return [=](Stream& s) { gelu_backward_sums(s, dx, sums, dy, x, GeluForm::tanh, true); };
      },
      3 * 4 * n * 2, /*sums of four chunks of rows*/ 4 * cols * 8 + cols * 8, 4 * cols * 2 + 2 * cols);
  check_traffic(
      [&](Operands& o) {
        const Tensor master = o.make(kF32, {n}), m = o.make(kF32, {n}), v = o.make(kF32, {n}),
                     g = o.make(kF32, {n}), low = o.make(kBf16, {n});
        OptimizerStep a;
        a.lr = 0.01;
        return [=](Stream& s) { adamw(s, master, m, v, g, low, {{n, true, a}}); };
      },
      n * 30, 0, n / 4);
}

TEST_CASE("rounding to FP8 reads each element once, with its largest magnitude and transposed too") {
  const int64_t rows = 128, cols = 256, n = rows * cols;
  for (const bool turn : {false, true})
    check_traffic(
        [&](Operands& o) {
          const Tensor x = o.make(kBf16, {rows, cols}), amax = o.make(kF32, {1});
          const Tensor step = o.make(kF32, {1});
          const Tensor codes = o.make(DType::f8e4m3, turn ? Shape{cols, rows} : Shape{rows, cols});
          return [=](Stream& s) { quantize(s, codes, x, turn, step, amax); };
        },
        n * 3, 0, 0);
}

TEST_CASE("a sum of squares has the same bits wherever its elements lie") {
  const int64_t n = 5003;
  OnDevice o;
  const Tensor apart = o.make(kF32, {n + 4}), total = o.make(DType::f64, {4});
  const auto sum_at = [&](int64_t offset) {
    // The same elements, `offset` further on.
    const Tensor x = o.make(kF32, {n + offset});
    o.run([&](Stream& s) {
      cast(s, x.flat(offset, {n}), apart.flat(0, {n}));
      fill_zero(s, total);
      sum_squares(s, total.flat(0, {1}), x.flat(offset, {n}));
    });
    return o.values<double>(total)[0];
  };
  const double aligned = sum_at(0);
  CHECK(aligned > 0);
  for (const int64_t offset : {1, 2, 3}) CHECK(sum_at(offset) == aligned);
}
#endif
