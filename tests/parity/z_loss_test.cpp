// The z-loss on output logits: what it adds to the objective, under every axis, and what it leaves alone.
#include <catch2/catch.hpp>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions with_z_loss() {
  TinyOptions o;
  o.z_loss_coeff = 0.05;
  o.layers = 5;
  o.padded_targets = true;
  o.steps = 2;
  return o;
}

void check_layout(const TinyResult& base, const TinyOptions& o) {
  const TinyResult many = train_tiny(o);
  require_parity(base, many, 1e-12);
  CHECK(many.plan_bytes == many.used_bytes);
  CHECK(many.plan_wire == many.used_wire);
}

}  // namespace

TEST_CASE("a z-loss on output logits equals one process to 1e-12 in fp64 under every axis") {
  TinyOptions one = with_z_loss();
  one.tied = GENERATE(false, true);
  one.micro_batch = 2;
  one.kv_heads = 4, one.intermediate = 64;  // a cube divides these
  const TinyResult base = train_tiny(one);
  for (const double z : base.z_losses) CHECK(z > 0.05);  // log(61) squared, times 0.05, is 0.8
  const auto check = [&](const char* name, const std::function<void(TinyOptions&)>& change) {
    INFO(name << (one.tied ? ", tied" : ""));
    TinyOptions o = one;
    change(o);
    check_layout(base, o);
  };
  check("data 2, ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; });
  check("tensor 4, sequence", [](TinyOptions& o) { o.tensor = 4, o.sequence_parallel = true; });
  check("context 2", [](TinyOptions& o) { o.context = 2; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
  check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d"; });
  check("3d", [](TinyOptions& o) { o.tensor = 8, o.tensor_mode = "3d", o.micro_batch = 4; });
}

TEST_CASE("a z-loss pulls log Z towards zero, and evaluations and other runs do not know of it") {
  TinyOptions with = with_z_loss(), without = with;
  without.z_loss_coeff = 0;
  with.steps = without.steps = 8;
  const TinyResult on = train_tiny(with), off = train_tiny(without);
  CHECK(on.losses[0] == off.losses[0]);  // lm_loss is the cross-entropy alone
  CHECK(on.losses[1] != off.losses[1]);
  CHECK(off.z_losses == std::vector<double>(8, 0.0));
  CHECK(on.z_losses.back() < 0.8 * on.z_losses.front());
  // Twice the coefficient: twice the loss, before an update.
  TinyOptions twice = with;
  twice.z_loss_coeff *= 2;
  twice.steps = 1;
  CHECK(std::abs(train_tiny(twice).z_losses[0] / on.z_losses[0] - 2) < 1e-12);
}

TEST_CASE("a z-loss is of the model's own logits, not of multi-token prediction or of drawn labels") {
  TinyOptions o = with_z_loss();
  o.steps = 1;
  o.architecture = "deepseek_v3";
  o.moe.num_experts = 4;
  o.moe.top_k = 2;
  const double alone = train_tiny(o).z_losses[0];
  o.modules = 1;
  CHECK(std::abs(train_tiny(o).z_losses[0] - alone) < 1e-12);
  // Sophia's estimate by drawn labels takes squares of the token losses' gradients alone: with a coefficient
  // that is beyond all bounds the estimate of the first step stays, and only the moment is another.
  TinyOptions sophia = with_z_loss();
  sophia.steps = 1;
  sophia.optimizer.rule = UpdateRule::sophia;
  NamedTensors states[2];
  for (const double coeff : {0.0, 5.0}) {
    sophia.z_loss_coeff = coeff;
    TinyHooks hooks;
    hooks.end = [&](const TinyRank& rank) {
      for (const OwnedPiece& p : rank.program.parameters().owned_pieces())
        for (const NamedState& s : p.moments)
          if (s.name == "hessian") {
            const double* values = s.tensor.ptr<double>();
            auto& to = states[coeff > 0][rank.program.parameters().spec(p.id).name];
            to.insert(to.end(), values, values + s.tensor.elements());
          }
    };
    train_tiny(sophia, {}, hooks);
  }
  REQUIRE(!states[0].empty());
  const bool same = states[0] == states[1];
  CHECK(same);
}
