// Results that a layout may change: settings that are defined over the tokens of a micro-batch. numerics.md
// and README name them; everything else has the losses of one process under every layout.
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Largest relative difference of losses.
double loss_difference(const TinyResult& a, const TinyResult& b) {
  double most = 0;
  for (size_t i = 0; i < a.losses.size(); ++i) most = std::max(most, std::abs(a.losses[i] / b.losses[i] - 1));
  return most;
}

TinyOptions balanced_by(BalanceLoss kind) {
  TinyOptions o = tiny_moe();
  o.moe.balance = kind;
  o.moe.balance_coeff = 0.1;
  o.micro_batch = 4;
  o.steps = 3;
  return o;
}

/// Two data-parallel ranks, each with `micro_batch` sequences.
TinyOptions on_two(TinyOptions o, int64_t micro_batch) {
  o.ranks = 2;
  o.micro_batch = micro_batch;
  return o;
}

constexpr double kEqual = 1e-12, kOther = 1e-9;

}  // namespace

TEST_CASE("balance by micro-batch follows the sequences of a micro-batch over all ranks, and nothing else",
          "[expert]") {
  const BalanceLoss kind = GENERATE(BalanceLoss::switch_loss, BalanceLoss::global, BalanceLoss::uniform);
  const TinyOptions one = balanced_by(kind);
  const TinyResult base = train_tiny(one);
  // The same number of sequences over all ranks: the same sets, whatever the layout.
  CHECK(loss_difference(base, train_tiny(on_two(one, 2))) < kEqual);
  TinyOptions experts = on_two(one, 2);
  experts.expert = 2;
  CHECK(loss_difference(base, train_tiny(experts)) < kEqual);
  // More ranks with the same train.micro_batch_size have larger sets.
  CHECK(loss_difference(base, train_tiny(on_two(one, 4))) > kOther);
}

TEST_CASE("balance by sequence gives the same losses under every layout", "[expert]") {
  const TinyOptions one = balanced_by(BalanceLoss::sequence);
  const TinyResult base = train_tiny(one);
  CHECK(loss_difference(base, train_tiny(on_two(one, 2))) < kEqual);
  CHECK(loss_difference(base, train_tiny(on_two(one, 4))) < kEqual);
  TinyOptions two = one;
  two.micro_batch = 2;
  CHECK(loss_difference(base, train_tiny(two)) < kEqual);
}

TEST_CASE("tensorwise FP8 follows the micro-batch of a rank, and nothing else of the layout") {
  TinyOptions one;
  one.fp8.emplace().recipe = Fp8Recipe::tensorwise;
  one.micro_batch = 4;
  const TinyResult base = train_tiny(one);
  CHECK(loss_difference(base, train_tiny(on_two(one, 4))) < 1e-11);
  CHECK(loss_difference(base, train_tiny(on_two(one, 2))) > kOther);
}

TEST_CASE("a capacity follows the micro-batch of a rank, and nothing else of the layout", "[expert]") {
  TinyOptions one = balanced_by(BalanceLoss::none);
  one.moe.capacity_factor = 1.0;
  const TinyResult base = train_tiny(one);
  CHECK(loss_difference(base, train_tiny(on_two(one, 4))) < kEqual);
  TinyOptions experts = on_two(one, 4);
  experts.expert = 2;
  CHECK(loss_difference(base, train_tiny(experts)) < kEqual);
  CHECK(loss_difference(base, train_tiny(on_two(one, 2))) > kOther);
}
