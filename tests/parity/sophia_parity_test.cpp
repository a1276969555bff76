// Sophia-H in whole jobs: layouts agree with one rank, stages of ZeRO to the bit, plans with runs; the
// estimate is that of the model's loss.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions job() {
  TinyOptions o;
  o.optimizer.rule = UpdateRule::sophia_h;
  o.optimizer.hessian_interval = 2;
  o.optimizer.sophia_gamma = 1;
  o.optimizer.hessian_radius = 1e-4;
  o.global_batch = 4;
  o.kv_heads = 2;
  o.dropout = 0.1;
  return o;
}

}  // namespace

TEST_CASE("Sophia-H: layouts agree with one rank, and plans with runs") {
  for (const char* architecture : {"llama", "gpt2"}) {
    TinyOptions one = job();
    one.architecture = architecture;
    if (one.architecture == "gpt2") one.kv_heads = 0;
    const TinyResult want = train_tiny(one);
    const auto check = [&](const char* name, const std::function<void(TinyOptions&)>& change) {
      TinyOptions o = one;
      change(o);
      INFO(architecture << ", " << name);
      const TinyResult got = train_tiny(o);
      for (size_t i = 0; i < want.losses.size(); ++i)
        CHECK(std::abs(got.losses[i] - want.losses[i]) <= 1e-7 * want.losses[i]);
      CHECK(std::abs(got.eval_loss - want.eval_loss) <= 1e-7 * want.eval_loss);
      CHECK(got.plan_bytes == got.used_bytes);
      CHECK(got.plan_wire == got.used_wire);
    };
    check("one", [](TinyOptions&) {});
    check("tensor 4, sequence, ZeRO-1",
          [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true, o.ranks = 2, o.zero_stage = 1; });
    check("pipeline 2, ZeRO-2", [](TinyOptions& o) { o.pipeline = 2, o.ranks = 2, o.zero_stage = 2; });
    check("context 2, ZeRO-3", [](TinyOptions& o) { o.context = 2, o.zero_stage = 3, o.dropout = 0.1; });
    check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
    check("full recompute", [](TinyOptions& o) { o.recompute.run = 1; });
    check("activations that leave", [](TinyOptions& o) {
      o.layers = 2;
      o.activations.fraction = 1;
      o.activations.input = true;
    });
    TinyOptions other = one;
    other.optimizer.hessian_interval = 3;  // one estimate in three steps where there were two
    CHECK(std::abs(train_tiny(other).eval_loss - want.eval_loss) > 1e-6 * want.eval_loss);
  }
}

TEST_CASE("Sophia-H: stages of ZeRO agree to the bit") {
  TinyOptions o = job();
  o.precision = "fp32";
  o.ranks = 2;
  o.micro_batch = 2;
  const TinyResult plain = train_tiny(o);
  for (int stage : {1, 2, 3}) {
    INFO("ZeRO " << stage);
    o.zero_stage = stage;
    const TinyResult zero = train_tiny(o);
    check_same_bits(plain, zero);
    CHECK(zero.plan_bytes == zero.used_bytes);
    CHECK(zero.plan_wire == zero.used_wire);
  }
}
