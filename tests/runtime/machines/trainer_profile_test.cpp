// Steps priced as other trainers run them: what their files change of a card's prices, what is refused.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/check/check_job.h"
#include "runtime/machines/trainer_profile.h"
#include "runtime/plan/make_plan.h"
#include "tests/runtime/plan/tiny_recipe.h"
#include "tests/support/replaced.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

constexpr const char* kTrainer = R"(format: ltrain.trainer.v1
name: other
text: a trainer of this test
references:
  paper: "a paper of this test"
cards:
  - compute_capability: 90
    attention:
      forward: {value: [[64, 0.2], [128, 0.25]], source: published, reference: paper}
      backward: {value: [[64, 0.1], [128, 0.125]], source: published, reference: paper}
    matmul: {value: 0.5, source: assumed, reference: "half"}
    traffic: {value: 3, source: assumed, reference: "three passes"}
)";

OpCost op_cost(OpClass cls, std::string_view name, double flops, double bytes) {
  OpCost c;
  c.cls = cls, c.name = name, c.dtype = DType::bf16;
  c.flops = flops, c.bytes = bytes;
  return c;
}

}  // namespace

TEST_CASE("a trainer's figures change products, attention and memory traffic, each by what it says",
          "[plan]") {
  MachineProfile p = find_profile("h100");
  const DeviceCost ours(*p.device, p.levels);
  price_as(p, parse_trainer_profile(kTrainer, "other.yaml"));
  const DeviceCost theirs(*p.device, p.levels);
  const double launch = p.device->launch_seconds.value;
  const auto ratio = [&](const OpCost& c) {
    return (theirs.op_seconds(c) - launch) / (ours.op_seconds(c) - launch);
  };
  OpCost product = op_cost(OpClass::matmul, "matmul_nt", 2.0 * 8192 * 8192 * 8192, 0);
  product.m = product.n = product.k = 8192;
  CHECK(ratio(product) == Approx(2));
  product.bytes = 1e12;  // bound by memory: a product reads what ours reads
  CHECK(ratio(product) == Approx(1));
  OpCost attention = op_cost(OpClass::attention, "attention_forward", 1e14, 0);
  attention.k = 128, attention.n = 1 << 20;
  CHECK(ratio(attention) == Approx(0.545 / 0.25).epsilon(1e-3));
  attention.name = "attention_backward";
  CHECK(ratio(attention) == Approx(0.53 / 0.125).epsilon(1e-3));
  CHECK(ratio(op_cost(OpClass::elementwise, "norm_forward", 1e3, 1e12)) == Approx(3).epsilon(1e-4));
  CHECK(p.source == "h100, built in, as run by other");
  std::vector<std::string> names;
  for (const FigureUse& use : theirs.used()) names.push_back(use.name);
  CHECK_THAT(names, Catch::VectorContains(std::string("trainer.matmul")));
  CHECK_THAT(names, Catch::VectorContains(std::string("trainer.traffic")));
}

TEST_CASE("a trainer that gives nothing for a card leaves its prices", "[plan]") {
  MachineProfile p = find_profile("h100");
  const double before =
      DeviceCost(*p.device, p.levels).op_seconds(op_cost(OpClass::elementwise, "x", 0, 1e9));
  price_as(p, parse_trainer_profile("format: ltrain.trainer.v1\nname: none\ntext: of this test\ncards:\n"
                                    "  - compute_capability: 90\n",
                                    "none.yaml"));
  CHECK(DeviceCost(*p.device, p.levels).op_seconds(op_cost(OpClass::elementwise, "x", 0, 1e9)) == before);
}

TEST_CASE("trainers that are built in name cards that are built in, and all with figures make steps slower",
          "[plan]") {
  REQUIRE(builtin_trainers().size() >= 3);
  for (const TrainerProfile& t : builtin_trainers())
    for (const TrainerRates& card : t.cards) {
      INFO(t.name);
      const auto is = [&](const std::string& name) {
        return find_profile(name).device->compute_capability == card.compute_capability;
      };
      const std::vector<std::string> cards = built_in_cards();
      const auto found = std::find_if(cards.begin(), cards.end(), is);
      REQUIRE(found != cards.end());
      MachineProfile ours = find_profile(*found), theirs = ours;
      price_as(theirs, t);
      const Recipe r = tiny_recipe(
          1, {"device=cuda", "precision=bf16", "model.hidden_size=2048", "model.num_attention_heads=16",
              "model.max_position_embeddings=2048", "data.seq_length=2048"});
      const bool figures = card.attention.forward.given() || card.matmul.given || card.traffic.given;
      CHECK((make_plan(r, theirs).step_seconds() > make_plan(r, ours).step_seconds()) == figures);
    }
}

TEST_CASE("trainer profiles that are wrong, and cards that a trainer does not know, are refused by name",
          "[plan]") {
  const auto refused = [](const std::string& text) {
    try {
      parse_trainer_profile(text, "other.yaml");
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::usage);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(refused(kTrainer) == "accepted");
  CHECK_THAT(refused(replaced(kTrainer, "traffic", "trafic")), Contains("trafic") && Contains("traffic"));
  CHECK_THAT(refused(replaced(kTrainer, "value: 0.5", "value: 1.5")), Contains("cards[0].matmul"));
  CHECK_THAT(refused(replaced(kTrainer, "value: 3", "value: 0")), Contains("traffic"));
  CHECK_THAT(refused(replaced(kTrainer, "reference: paper", "reference: papre")), Contains("papre"));
  CHECK_THAT(refused("format: ltrain.trainer.v1\nname: a\ntext: b\ncards: []\n"), Contains("cards"));
  CHECK_THAT(refused("format: ltrain.device.v1\nname: a\n"), Contains("ltrain.trainer.v1"));
  const TrainerProfile trainer = parse_trainer_profile(kTrainer, "other.yaml");
  MachineProfile a100 = find_profile("a100"), cpu = find_profile("cpu-16");
  CHECK_THROWS_WITH(price_as(a100, trainer), Contains("compute capability 90") && Contains("a100 has 80"));
  CHECK_THROWS_WITH(price_as(cpu, trainer), Contains("not of a card's figures"));
  CHECK_THROWS_WITH(find_trainer("torchtitan-2042"), Contains("did you mean torchtitan-2024?"));
}
