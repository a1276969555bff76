// Bytes of norms of heads, and of rows whose columns several ranks share.
#include <catch2/catch.hpp>

#include "kernels/elementwise/dropout.h"
#include "kernels/norm/clip_qkv.h"
#include "kernels/norm/head_norm.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_cut.h"
#include "tests/cuda_traffic/accesses.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("bytes: norms of heads") {
  const int64_t rows = 32, width = 128, heads = 6, cols = 10 * width, count = rows * heads, n = count * width;
  HeadNorm part;
  part.first = width, part.heads = heads, part.width = width;
  for (const bool kept : {true, false})
    check_bytes(
        [&](Operands& o) {
          const Tensor y = o.make(kBf16, {rows, cols}), weight = o.make(kBf16, {width});
          const Tensor x = kept ? o.make(kBf16, {rows, heads * width}) : Tensor(),
                       rstd = kept ? o.make(kF32, {rows, heads}) : Tensor();
          return [=](Stream& s) { head_norm_forward(s, y, x, rstd, weight, part); };
        },
        // A head is read again to be written, twice where it is kept too; the weight for each head.
        {.floor = (kept ? 3 : 2) * n * 2,
         .unpriced = width * 2 + (kept ? count * 4 : 0),
         .repeated = (kept ? 6 : 4) * n - width * 2});
  check_bytes(
      [&](Operands& o) {
        const Tensor dy = o.make(kBf16, {rows, cols}), weight = o.make(kBf16, {width}),
                     x = o.make(kBf16, {rows, heads * width}), rstd = o.make(kF32, {rows, heads}),
                     dweight = o.make(kF32, {width});
        return [=](Stream& s) { head_norm_backward(s, dy, dweight, x, rstd, weight, part, false); };
      },
      // Both matrices three times, for the weight's gradient, the dot product of a head and its gradient; the
      // weight twice and rstd twice by each thread. A card does what a head's 256 bytes need in the first
      // cache, and the pass for the weight once more from memory: 5 matrices in place of 3.
      {.floor = 3 * n * 2,
       .unpriced = width * (2 + 4) + count * 4,
       .repeated = 2 * 2 * n * 2 + (2 * n * 2 - width * 2) + (2 * n * 4 - count * 4),
       .scratch = count / 64 * width * 4 * 2});
}

TEST_CASE("bytes: clamps of queries, keys and values, where every value is clamped") {
  const int64_t rows = 32, width = 128, heads = 6, cols = 10 * width, count = rows * heads, n = count * width;
  const double limit = 1e-9;
  HeadNorm part;
  part.first = width, part.heads = heads, part.width = width;
  check_bytes(
      [&](Operands& o) {
        const Tensor y = o.make(kBf16, {rows, cols});
        return [=](Stream& s) { clip_qkv_forward(s, y, limit); };
      },
      {.floor = 2 * rows * cols * 2});
  check_bytes(
      [&](Operands& o) {
        const Tensor dy = o.make(kBf16, {rows, cols}), x = o.make(kBf16, {rows, heads * width}),
                     rstd = o.make(kF32, {rows, heads}), weight = o.make(kBf16, {width});
        return [=](Stream& s) { clip_heads_backward(s, dy, x, rstd, weight, part, limit); };
      },
      // The weight and rstd for each element.
      {.floor = 2 * n * 2, .unpriced = width * 2 + count * 4, .repeated = (n - width) * 2 + (n - count) * 4});
  check_bytes(
      [&](Operands& o) {
        const Tensor dy = o.make(kBf16, {rows, cols}), y = o.make(kBf16, {rows, cols});
        return [=](Stream& s) { clip_values_backward(s, dy, y, width, limit); };
      },
      // A negative value is compared with both limits.
      {.floor = 2 * rows * (cols - width) * 2, .more = rows * (cols - width) * 2});
}

TEST_CASE("bytes: norms of rows whose columns ranks share") {
  const int64_t rows = 32, cols = 512, ranks = 4, n = rows * cols, threads = 256;
  check_bytes(
      [&](Operands& o) {
        const Tensor x = o.make(kBf16, {rows, cols}), moments = o.make(kF32, {rows, 1});
        return [=](Stream& s) { norm_moments(s, moments, x, NormKind::rms); };
      },
      {.floor = n * 2 + rows * 4});
  check_bytes(
      [&](Operands& o) {
        NormApply a;
        a.x = o.make(kBf16, {rows, cols}), a.y = o.make(kBf16, {rows, cols});
        a.moments = o.make(kF32, {ranks * rows, 1}), a.weight = o.make(kBf16, {cols});
        a.rstd = o.make(kF32, {rows});
        return [a](Stream& s) { norm_apply(s, a); };
      },
      // The weight a row, and the row's moments of all ranks by each thread.
      {.floor = 2 * n * 2,
       .unpriced = cols * 2 + rows * 4 * (ranks + 1),
       .repeated = (rows - 1) * cols * 2 + (threads - 1) * rows * ranks * 4});
  const auto backward = [&](Operands& o) {
    NormCutBackward b;
    b.dy = o.make(kBf16, {rows, cols}), b.x = o.make(kBf16, {rows, cols});
    b.dx = o.make(kBf16, {rows, cols}), b.weight = o.make(kBf16, {cols});
    b.rstd = o.make(kF32, {rows}), b.dweight = o.make(kF32, {cols});
    b.dots = o.make(kF32, {rows, 1}), b.all_cols = ranks * cols, b.first = true;
    return b;
  };
  check_bytes(
      [&](Operands& o) {
        const NormCutBackward b = backward(o);
        return [b](Stream& s) { norm_cut_dots(s, b); };
      },
      // Both matrices again for the weight's gradient, which is a kernel of its own; the weight a row; rstd
      // by each thread, and for each element of the second kernel.
      {.floor = 2 * n * 2 + rows * 4,
       .unpriced = cols * (2 + 4) + rows * 4,
       .repeated = 2 * n * 2 + (rows - 1) * cols * 2 + (threads - 1) * rows * 4 + n * 4,
       .scratch = cols * 4 * 2});
  check_bytes(
      [&](Operands& o) {
        const NormCutBackward b = backward(o);
        return [b](Stream& s) { norm_cut_backward(s, b); };
      },
      {.floor = 3 * n * 2,
       .unpriced = cols * 2 + rows * 4 * 2,
       .repeated = (rows - 1) * cols * 2 + 2 * (threads - 1) * rows * 4});
}

TEST_CASE("bytes: a residual that is added, with and without dropout") {
  const int64_t rows = 32, cols = 512, n = rows * cols;
  for (const bool drops : {false, true})
    check_bytes(
        [&](Operands& o) {
          const Tensor sum = o.make(kBf16, {rows, cols}), x = o.make(kBf16, {rows, cols}),
                       delta = o.make(kBf16, {rows, cols});
          Dropout d;
          d.sample_index = o.make(DType::i64, {2}, [](int64_t i) { return i; });
          d.rows.seq = rows / 2;
          if (drops) d.p = 0.1;
          return [=](Stream& s) { residual_add(s, sum, x, delta, d); };
        },
        // With dropout the sample of its row for each pack of eight.
        {.floor = 3 * n * 2, .unpriced = drops ? 16 : 0, .repeated = drops ? n / 8 * 8 - 16 : 0});
}
