// Bytes of routers, of rows that go to experts and back, and of their products.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "kernels/matmul/grouped/grouped_bias.h"
#include "kernels/matmul/grouped/grouped_gemm.h"
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/matmul/quantize.h"
#include "kernels/moe/balance.h"
#include "kernels/moe/jitter.h"
#include "kernels/moe/route.h"
#include "kernels/moe/router_bias.h"
#include "kernels/moe/shared_capacity.h"
#include "kernels/moe/sort_choices.h"
#include "kernels/moe/token_rows.h"
#include "tests/cuda_traffic/accesses.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kTokens = 256, kExperts = 8, kTopK = 2, kChoices = kTokens * kTopK, kCols = 128,
                  kPacks = kCols / 8;

/// Every token has kTopK experts, in turns, so that each expert has as many.
Routing routing(Operands& o) {
  const auto expert = [](int64_t i) { return i % kExperts; };
  const int64_t each = kChoices / kExperts;
  Routing r;
  r.logits = o.make(kF32, {kTokens, kExperts}), r.norm = o.make(kF32, {kTokens, 2});
  r.experts = o.make(kI32, {kTokens, kTopK}, expert), r.weights = o.make(kF32, {kTokens, kTopK});
  r.slots = o.make(kI32, {kTokens, kTopK}, [=](int64_t i) { return expert(i) * each + i / kExperts; });
  r.sources = o.make(kI32, {kChoices}, [=](int64_t row) { return row % each * kExperts + row / each; });
  r.counts = o.make(kI64, {kExperts + 1}, [=](int64_t e) { return e < kExperts ? each : -1; });
  r.statistics = o.make(kF64, {3, kExperts});
  r.run = kTokens;
  return r;
}

RouteArgs args() {
  RouteArgs a;
  a.experts = kExperts, a.top_k = kTopK;
  return a;
}

}  // namespace

TEST_CASE("bytes: rows of tokens to those of experts and back") {
  const int64_t tokens = kTokens * kCols * 2, rows = kChoices * kCols * 2;
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor x = o.make(kBf16, {kTokens, kCols}), out = o.make(kBf16, {kChoices, kCols});
        return [=](Stream& s) { permute_rows(s, out, x, r, kChoices); };
      },
      // A token's row is read for each of its experts, from the caches but once; where it goes by each
      // thread, which has 16 bytes of it.
      {.floor = 2 * rows,
       .unpriced = kChoices * 4 - (rows - tokens),
       .repeated = rows - tokens + (kPacks - 1) * kChoices * 4});
  for (const bool weighted : {true, false})
    check_bytes(
        [=](Operands& o) {
          const Routing r = routing(o);
          const Tensor y = o.make(kBf16, {kTokens, kCols}), z = o.make(kBf16, {kChoices, kCols});
          return [=](Stream& s) { combine_rows(s, y, z, r, weighted); };
        },
        {.floor = tokens + rows,
         .unpriced = kChoices * (weighted ? 8 : 4),
         .repeated = (kPacks - 1) * kChoices * (weighted ? 8 : 4)});
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor dy = o.make(kBf16, {kTokens, kCols}), z = o.make(kBf16, {kChoices, kCols}),
                     dz = o.make(kBf16, {kChoices, kCols}), dweights = o.make(kF32, {kTokens, kTopK});
        return [=](Stream& s) { combine_rows_backward(s, dz, dweights, dy, z, r); };
      },
      // A token's gradient likewise; slots and weights by each lane.
      {.floor = tokens + 2 * rows,
       .unpriced = kChoices * (4 + 4 + 4),
       .repeated = rows - tokens + 31 * kChoices * 8});
}

TEST_CASE("bytes: the router and its losses") {
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        return [=](Stream& s) { route_forward(s, r, {}, args()); };
      },
      // Logits are read and not written, as the plan has it; what is chosen is written and, by the kernels
      // that follow, read; a block an expert goes over all choices, twice, which the caches hold.
      {.floor = 2 * kTokens * kExperts * 4 + kChoices * 16,
       .unpriced = -kTokens * kExperts * 4 + 2 * kTokens * 8 + 3 * kChoices * 4 + 3 * kExperts * 8 +
                   (2 * kExperts + 1) * 8,
       .repeated = 152176,
       .scratch = 2 * (kTokens / 64) * kExperts * 8 * 2});
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor dlogits = o.make(kF32, {kTokens, kExperts}), dweights = o.make(kF32, {kTokens, kTopK}),
                     table = o.make(kF64, {1, kExperts});
        return [=](Stream& s) { route_backward(s, dlogits, dweights, r, table, 0.01, args()); };
      },
      {.floor = 2 * kTokens * kExperts * 4 + 2 * kChoices * 4,
       // Choices, the tokens' norms and the table; gradients of chosen logits are added to. A choice is read
       // again to see if it is of a zero expert.
       .unpriced = kChoices * (4 + 4) + kTokens * 8 + kExperts * 8,
       .repeated = 61376});
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor total = o.make(kF64, {1});
        return [=](Stream& s) { add_z_loss(s, total, r, 0.01); };
      },
      {.floor = kTokens * 8, .unpriced = 16 - kTokens * 4});
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor total = o.make(kF64, {1});
        return [=](Stream& s) { add_router_entropy(s, total, r, args(), 0.01); };
      },
      // A token's norms are read with each of its logits.
      {.floor = kTokens * (kExperts * 4 + 8), .unpriced = 16, .repeated = (kExperts - 1) * kTokens * 8});
  check_bytes(
      [](Operands& o) {
        const Tensor table = o.make(kF64, {1, kExperts}), total = o.make(kF64, {1}),
                     local = o.make(kF64, {2, kExperts}), all = o.make(kF64, {2, kExperts});
        BalanceArgs a;
        a.experts = kExperts, a.tokens = kTokens, a.coeff = 0.01;
        return [=](Stream& s) { balance_loss(s, table, total, local, all, a); };
      },
      // Half of both statistics is not read, because this loss does not use it; total is read and written.
      // All of an expert's threads read the choices of all experts.
      {.floor = 5 * kExperts * 8,
       .unpriced = 16 - 2 * kExperts * 8,
       .repeated = (kExperts - 1) * kExperts * 8});
  check_bytes(
      [](Operands& o) {
        const Tensor bias = o.make(kF32, {4, kExperts}), chosen = o.make(kF64, {4, kExperts});
        return [=](Stream& s) { move_router_bias(s, bias, chosen, 0.001); };
      },
      {.floor = 2 * 4 * kExperts * 4, .unpriced = 4 * kExperts * 8, .repeated = 4 * kExperts * kExperts * 8});
}

TEST_CASE("bytes: choices sorted by expert, and capacities") {
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor kept = o.make(kI32, {kTokens, kTopK}), counts = o.make(kI64, {kExperts + 1});
        return [=](Stream& s) { sort_choices(s, r, kept, counts, {0, {}, 0, false}); };
      },
      // Places are written, read and written as rows; a block an expert goes over all choices, twice, and the
      // last kernel adds up the counts of the experts before.
      {.floor = kChoices * 16,
       .unpriced = kChoices * 4 + (kExperts - 1) * 8 + (kExperts + 1) * 8 + 8,
       .repeated = (2 * kExperts + 1 - 1) * kChoices * 8 + kChoices * 4 + kChoices / kExperts * 28 * 8 -
                   (kExperts - 1) * 8});
  check_bytes(
      [](Operands& o) {
        const Routing r = routing(o);
        const Tensor kept = o.make(kI32, {kTokens, kTopK}), counts = o.make(kF64, {kExperts});
        return [=](Stream& s) {
          keep_of_all(s, kept, counts, r.experts, r.weights, {1, kTokens, 1, false}, 0, kChoices, args());
        };
      },
      {.floor = kChoices * 12 + kExperts * 8, .repeated = 47104});
  check_bytes(
      [](Operands& o) {
        const Tensor y = o.make(kBf16, {kTokens, kCols}), x = o.make(kBf16, {kTokens, kCols});
        RowRandom random;
        random.sample_index = o.make(kI64, {2}, [](int64_t i) { return i; });
        random.rows.seq = kTokens / 2;
        return [=](Stream& s) { jitter(s, y, x, random, 0.01); };
      },
      {.floor = 2 * kTokens * kCols * 2,
       .unpriced = 16,
       .repeated = /*the sample of each call's row*/ kTokens * kCols / 4 * 8 - 16});
}

TEST_CASE("bytes: products of the experts' rows on tensor cores") {
  // Tiles of a result read their rows of both operands once each: an operand comes again for each tile of
  // the result beside it. 128 rows an expert are one tile of rows.
  const int64_t groups = 2, rows = 128, n = 256, k = 128, all = groups * rows;
  const GroupRows of(groups, rows);
  for (const std::string kernel : {"mma", "wgmma"}) {
    CAPTURE(kernel);
    // Tiles of the result have 128 x 128 elements by mma, 128 x 256 by wgmma.
    const int64_t again = kernel == "mma" ? all * k * 2 : 0;
    ::setenv("LTRAIN_GROUPED_GEMM", kernel.c_str(), 1);
    check_bytes(
        [&](Operands& o) {
          const Tensor y = o.make(kBf16, {all, n}), x = o.make(kBf16, {all, k}),
                       w = o.make(kBf16, {groups, n, k});
          return [=](Stream& s) { grouped_matmul(s, y, x, w, of); };
        },
        {.floor = 2 * (all * n + all * k + groups * n * k), .repeated = again});
    check_bytes(
        [&](Operands& o) {
          const Tensor dy = o.make(kBf16, {all, n}), dx = o.make(kBf16, {all, k}),
                       w = o.make(kBf16, {groups, n, k});
          return [=](Stream& s) { grouped_matmul_dx(s, dx, dy, w, of); };
        },
        {.floor = 2 * (all * n + all * k + groups * n * k)});
    check_bytes(
        [&](Operands& o) {
          const Tensor dy = o.make(kBf16, {all, n}), x = o.make(kBf16, {all, k}),
                       dw = o.make(kF32, {groups, n, k});
          return [=](Stream& s) { grouped_matmul_dw(s, dw, dy, x, of, false); };
        },
        {.floor = 2 * (all * n + all * k) + groups * n * k * 4, .repeated = all * k * 2});
  }
  ::unsetenv("LTRAIN_GROUPED_GEMM");
  check_bytes(
      [&](Operands& o) {
        const Tensor y = o.make(kBf16, {all, n}), bias = o.make(kBf16, {groups, n});
        return [=](Stream& s) { grouped_add_bias(s, y, bias, of); };
      },
      {.floor = 2 * all * n * 2, .unpriced = groups * n * 2, .repeated = (rows - 1) * groups * n * 2});
  check_bytes(
      [&](Operands& o) {
        const Tensor dy = o.make(kBf16, {all, n}), dbias = o.make(kF32, {groups, n});
        return [=](Stream& s) { grouped_sum_rows(s, dbias, dy, of, false); };
      },
      {.floor = all * n * 2, .unpriced = groups * n * 4, .scratch = all / 64 * n * 4 * 2});
}

TEST_CASE("bytes: products of codes with steps for blocks") {
  const int64_t m = 128, n = 256, k = 256;
  check_bytes(
      [&](Operands& o) {
        const Tensor out = o.make(kBf16, {m, n});
        Fp8Operand a, b;
        a.codes = o.make(DType::f8e4m3, {m, k}), a.steps = o.make(kF32, {m, k / kFp8Block}), a.block_rows = 1;
        b.codes = o.make(DType::f8e4m3, {n, k}), b.steps = o.make(kF32, {n / kFp8Block, k / kFp8Block});
        b.block_rows = kFp8Block;
        a.of = o.make(kBf16, {m, k}), b.of = o.make(kBf16, {n, k});
        return [=](Stream& s) { matmul_fp8(s, out, a, b); };
      },
      // Steps beside; the left operand and its steps for both tiles of columns, and a block's step by each
      // thread.
      {.floor = m * n * 2 + (m + n) * k,
       .unpriced = (m + n / kFp8Block) * (k / kFp8Block) * 4,
       .repeated = m * k + m * (k / kFp8Block) * 4 + 128 * 4 * 4 - 16});
  for (const int64_t block_rows : {int64_t{1}, kFp8Block})
    for (const bool turn : {false, true})
      check_bytes(
          [=](Operands& o) {
            const Tensor x = o.make(kBf16, {m, n});
            const int64_t r = turn ? n : m, c = turn ? m : n;
            const Tensor codes = o.make(DType::f8e4m3, {r, c}),
                         steps = o.make(kF32, {r / block_rows, c / kFp8Block});
            return [=](Stream& s) { quantize_blocks(s, codes, steps, x, turn, block_rows); };
          },
          {.floor = m * n * 3, .unpriced = m * n / kFp8Block / block_rows * 4});
}

TEST_CASE("bytes: largest magnitudes, codes that are transposed and steps") {
  const int64_t rows = 128, cols = 256, n = rows * cols;
  check_bytes(
      [=](Operands& o) {
        const Tensor x = o.make(kBf16, {n}), amax = o.make(kF32, {1});
        return [=](Stream& s) { max_abs(s, amax, x); };
      },
      // An atomic maximum by each of 16 blocks.
      {.floor = n * 2, .unpriced = 4, .repeated = 15 * 4});
  check_bytes(
      [=](Operands& o) {
        const Tensor x = o.make(kBf16, {rows, cols}), codes = o.make(DType::f8e4m3, {rows, cols}),
                     transposed = o.make(DType::f8e4m3, {cols, rows}), step = o.make(kF32, {1}),
                     amax = o.make(kF32, {1});
        return [=](Stream& s) { quantize_both(s, codes, transposed, x, step, amax); };
      },
      // Two tiles, each by a block of 512 threads, which read the step.
      {.floor = n * 4, .unpriced = 4 + 4, .repeated = (2 * 512 - 1) * 4 + 4});
  check_bytes(
      [=](Operands& o) {
        const Tensor transposed = o.make(DType::f8e4m3, {cols, rows}),
                     codes = o.make(DType::f8e4m3, {rows, cols});
        return [=](Stream& s) { turn_codes(s, transposed, codes); };
      },
      {.floor = n * 2});
  check_bytes(
      [=](Operands& o) {
        const Tensor steps = o.make(kF32, {64, kFp8StepStride}), amax = o.make(kF32, {64}),
                     history = o.make(kF32, {64, 16});
        return [=](Stream& s) { update_fp8_steps(s, steps, amax, history, {}); };
      },
      // The history but its last entry is read, all of it is written, and amax is cleared.
      {.floor = 64 * 8, .unpriced = 64 * (15 + 16 + 1) * 4, .repeated = 65280});
}
