// Bytes of optimizers' updates, and of what they compress.
#include <catch2/catch.hpp>

#include "kernels/elementwise/scale_add.h"
#include "kernels/optimizer/adafactor.h"
#include "kernels/optimizer/adamw_8bit.h"
#include "kernels/optimizer/fake_quantize.h"
#include "kernels/optimizer/momentum.h"
#include "kernels/optimizer/onebit/error_feedback.h"
#include "kernels/optimizer/onebit/onebit.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/optimizer/sophia.h"
#include "kernels/optimizer/sparsify.h"
#include "kernels/optimizer/two_step_update.h"
#include "tests/cuda_traffic/accesses.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kCount = 8192;

/// Tensors of kCount f32 elements.
template <int N>
std::array<Tensor, N> vectors(Operands& o) {
  std::array<Tensor, N> all;
  for (Tensor& t : all) t = o.make(kF32, {kCount});
  return all;
}

BoxElements elements() {
  BoxElements e;
  e.global[0] = e.extent[0] = kCount;
  return e;
}

}  // namespace

TEST_CASE("bytes: Sophia's estimates and step") {
  check_bytes(
      [](Operands& o) {
        const auto [y] = vectors<1>(o);
        return [=, y = y](Stream& s) { add_signs(s, y, 0.1, 1, 2, elements()); };
      },
      {.floor = kCount * 8});
  check_bytes(
      [](Operands& o) {
        const auto [h, g, shifted] = vectors<3>(o);
        return [h = h, g = g, shifted = shifted](Stream& s) {
          hutchinson_estimate(s, h, g, shifted, 0.9, 0.1, 1, 2, elements());
        };
      },
      {.floor = kCount * 16});
  check_bytes(
      [](Operands& o) {
        const auto [h, g] = vectors<2>(o);
        return [h = h, g = g](Stream& s) { gauss_newton_estimate(s, h, g, 0.9, 2); };
      },
      {.floor = kCount * 12});
  check_bytes(
      [](Operands& o) {
        const auto [w, m, h, g] = vectors<4>(o);
        const Tensor low = o.make(kBf16, {kCount});
        return [=, w = w, m = m, h = h, g = g](Stream& s) { sophia(s, w, m, h, g, low, true, {}, 0.05); };
      },
      {.floor = kCount * (24 + 2)});
}

TEST_CASE("bytes: updates with one moment") {
  for (const MomentumRule rule : {MomentumRule::sgd, MomentumRule::lion, MomentumRule::muon}) {
    const bool muon = rule == MomentumRule::muon;
    check_bytes(
        [=](Operands& o) {
          const auto [w, m, g] = vectors<3>(o);
          const Tensor low = muon ? Tensor() : o.make(kBf16, {kCount});
          MomentumArgs a;
          a.rule = rule;
          return [=, w = w, m = m, g = g](Stream& s) { momentum_update(s, w, m, g, low, true, a); };
        },
        {.floor = kCount * (20 + (muon ? 0 : 2))});
  }
}

TEST_CASE("bytes: AdamW with moments of a byte each") {
  const int64_t blocks = kCount / kCodeBlock;
  const auto moments = [=](Operands& o) {
    return CodedMoments{o.make(kU8, {kCount}), o.make(kU8, {kCount}), o.make(kF32, {2 * blocks})};
  };
  check_bytes(
      [=](Operands& o) {
        const auto [w, g] = vectors<2>(o);
        const CodedPart part{w, moments(o), g, o.make(kBf16, {kCount}), true, {}};
        return [=](Stream& s) { adamw_8bit(s, {part}); };
      },
      {.floor = kCount * (8 + 4 + 4 + 2) + blocks * 16, .repeated = /*scales by each lane*/ 31 * blocks * 8});
  for (const bool encode : {false, true})
    check_bytes(
        [=](Operands& o) {
          const CodedMoments m = moments(o);
          const Tensor values = o.make(kF32, {2 * kCount});
          return [=](Stream& s) { encode ? encode_moments(s, m, values) : decode_moments(s, values, m); };
        },
        // At a checkpoint.
        {.floor = kCount * (2 + 8) + blocks * 8,
         .repeated = encode ? 0 : /*a scale for each element*/ (kCodeBlock - 1) * blocks * 8,
         .planned = false});
}

TEST_CASE("bytes: updates in two halves") {
  check_bytes(
      [](Operands& o) {
        const auto [w, m, v, g] = vectors<4>(o);
        return [w = w, m = m, v = v, g = g](Stream& s) { lamb_direction(s, w, m, v, g, true, {}); };
      },
      {.floor = kCount * 28});
  check_bytes(
      [](Operands& o) {
        const auto [w, u] = vectors<2>(o);
        const Tensor low = o.make(kBf16, {kCount}), sums = o.make(kF64, {2});
        DirectionArgs d;
        d.scale = DirectionScale::trust, d.lr = 0.01;
        return [=, w = w, u = u](Stream& s) { apply_direction(s, w, u, low, sums, d); };
      },
      {.floor = kCount * 14, .unpriced = 16, .repeated = /*sums by each thread*/ (kCount / 4 - 1) * 16});
  check_bytes(
      [](Operands& o) {
        const auto [y, x] = vectors<2>(o);
        const Tensor length = o.make(kF64, {1});
        return [=, y = y, x = x](Stream& s) { scale_add(s, y, 0.5, x, 2, length); };
      },
      {.floor = kCount * 12, .unpriced = 8, .repeated = (kCount / 4 - 1) * 8});
}

TEST_CASE("bytes: updates with a second moment that stays") {
  check_bytes(
      [](Operands& o) {
        const auto [w, m, v, mean] = vectors<4>(o);
        const Tensor low = o.make(kBf16, {kCount});
        return [=, w = w, m = m, v = v, mean = mean](Stream& s) {
          onebit_adam(s, w, m, v, mean, low, true, {});
        };
      },
      {.floor = kCount * (20 + 2)});
  check_bytes(
      [](Operands& o) {
        const auto [w, m, v, fresh, mean] = vectors<5>(o);
        return [w = w, m = m, v = v, fresh = fresh, mean = mean](Stream& s) {
          onebit_lamb_direction(s, w, m, v, fresh, mean, true, {});
        };
      },
      {.floor = kCount * 32});
  check_bytes(
      [](Operands& o) {
        const auto [v, fresh] = vectors<2>(o);
        const Tensor most = o.make(kF64, {1});
        return [=, v = v, fresh = fresh](Stream& s) { onebit_ratio(s, most, v, fresh, {}); };
      },
      {.floor = kCount * 8, .unpriced = 16, .scratch = /*the largest of each block*/ kCount / 256 * 16});
  check_bytes(
      [](Operands& o) {
        const Tensor state = o.make(kF64, {64, 2}), sums = o.make(kF64, {64, 2});
        return [=](Stream& s) { onebit_coefficients(s, state, sums, true, {}); };
      },
      // Three of a tensor's four numbers are read, two are written.
      {.floor = 64 * 2 * 8 * 4, .unpriced = -64 * 8 * 3});
}

TEST_CASE("bytes: Adafactor's factors and directions") {
  const int64_t rows = 64, cols = kCount / rows;
  MatrixPart part;
  part.cols = cols, part.count = kCount;
  check_bytes(
      [=](Operands& o) {
        const auto [g] = vectors<1>(o);
        const Tensor sums = o.make(kF64, {rows + cols});
        return [=, g = g](Stream& s) { factor_sums(s, sums, g, part, rows, 1); };
      },
      // Rows and columns are two kernels, each of which reads the gradient: twice the floor.
      {.floor = kCount * 4, .unpriced = (rows + cols) * 16, .repeated = kCount * 4});
  check_bytes(
      [=](Operands& o) {
        const Tensor factors = o.make(kF32, {rows + cols + 1}), sums = o.make(kF64, {rows + cols});
        return [=](Stream& s) { factor_moments(s, factors, sums, rows, cols, 0.9); };
      },
      // The mean is written and not read; rows are read again for it.
      {.floor = (rows + cols) * 16 + 8, .unpriced = -4, .repeated = rows * 4});
  check_bytes(
      [=](Operands& o) {
        const auto [g] = vectors<1>(o);
        const Tensor factors = o.make(kF32, {rows + cols + 1});
        return [=, g = g](Stream& s) { factor_direction(s, g, factors, part, rows, 1, 1e-8); };
      },
      // The factors of each element's row and column, and the mean by each thread.
      {.floor = kCount * 8,
       .unpriced = (rows + cols + 1) * 4,
       .repeated = kCount * 12 - (rows + cols + 1) * 4});
  check_bytes(
      [](Operands& o) {
        const auto [g, v] = vectors<2>(o);
        return [g = g, v = v](Stream& s) { plain_direction(s, g, v, 0.9, 1, 1e-8); };
      },
      {.floor = kCount * 16});
}

TEST_CASE("bytes: coded gradients and what is left over") {
  for (const Code code : {Code::sign, Code::int8}) {
    const int64_t coded = coded_bytes(code, kF32, kCount), ranks = 4;
    // A thread loads the byte and the scale of each coded element.
    const int64_t again = kCount * 5 - coded;
    check_bytes(
        [=](Operands& o) {
          const auto [values, error] = vectors<2>(o);
          const Tensor to = o.make(kU8, {coded});
          return [=, values = values, error = error](Stream& s) { compress(s, code, to, values, error, {}); };
        },
        {.floor = kCount * 12 + coded});
    check_bytes(
        [=](Operands& o) {
          const auto [error] = vectors<1>(o);
          const Tensor to = o.make(kU8, {coded}), from = o.make(kU8, {ranks * coded});
          return [=, error = error](Stream& s) { compress_sum(s, code, to, from, ranks, 0.25, error, {}); };
        },
        {.floor = kCount * 8 + (1 + ranks) * coded, .repeated = ranks * again});
    check_bytes(
        [=](Operands& o) {
          const auto [values] = vectors<1>(o);
          const Tensor from = o.make(kU8, {coded});
          return [=, values = values](Stream& s) { decompress(s, code, values, from, {}); };
        },
        {.floor = kCount * 4 + coded, .repeated = again});
  }
}

TEST_CASE("bytes: rounding by chance, and sparsity") {
  check_bytes(
      [](Operands& o) {
        const Tensor in = o.make(kF32, {kCount}), out = o.make(kBf16, {kCount});
        return [=](Stream& s) { round_stochastic(s, out, in, 1, 2, elements()); };
      },
      {.floor = kCount * 6});
  check_bytes(
      [](Operands& o) {
        const Tensor x = o.make(kBf16, {kCount}), w = o.make(kF32, {kCount});
        return [=](Stream& s) { prune(s, x, w, {}); };
      },
      // x is not read, and of it two of each four are written. The plan has all of both.
      {.floor = kCount * 8, .unpriced = -(kCount * 2 + kCount)});
  check_bytes(
      [](Operands& o) {
        const Tensor x = o.make(kBf16, {kCount}), w = o.make(kF32, {kCount});
        return [=](Stream& s) { mask_by_zeros(s, x, w); };
      },
      // No weight is zero here, so that nothing is written.
      {.floor = kCount * 8, .unpriced = -kCount * 4});
  check_bytes(
      [](Operands& o) {
        const Tensor low = o.make(kBf16, {kCount}), w = o.make(kF32, {kCount});
        return [=](Stream& s) { choose_mask(s, low, w, {}, {}); };
      },
      // A weight is read twice, from the cache; the mask of before is not read.
      {.floor = kCount * 8, .unpriced = -kCount * 2, .repeated = kCount * 2});
  check_bytes(
      [](Operands& o) {
        const Tensor low = o.make(kBf16, {kCount}), w = o.make(kF32, {kCount});
        return [=](Stream& s) { masked_copy(s, low, w); };
      },
      {.floor = kCount * 8});
  check_bytes(
      [](Operands& o) {
        const Tensor low = o.make(kBf16, {kCount}), w = o.make(kF32, {kCount}), g = o.make(kF32, {kCount});
        return [=](Stream& s) { masked_decay(s, g, low, w, 0.5); };
      },
      // No weight is masked here: neither is read nor the gradient written.
      {.floor = kCount * 14, .unpriced = -kCount * 12});
}

TEST_CASE("bytes: fake quantization") {
  for (int64_t group : {32, 128})
    check_bytes(
        [=](Operands& o) {
          const Tensor out = o.make(kBf16, {kCount}), w = o.make(kF32, {kCount});
          return [=](Stream& s) { fake_quantize(s, out, w, WeightCodes::int4, group, kBf16); };
        },
        {.floor = kCount * 6, .repeated = kCount * 4});  // the second read of a group is of the cache
}
