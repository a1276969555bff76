// Plans of MoE models: even routing, the worst, and a skew between.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using Catch::Contains;
using nlohmann::json;
using test::tiny_recipe;

TEST_CASE("MoE models: the plan shows even routing and the worst", "[plan]") {
  const auto plan = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {"parallel.data=4", "parallel.expert=4", "model.moe.num_experts=8", "model.moe.top_k=2",
                      "train.global_batch_size=4", "train.micro_batch_size=1"});
    return make_plan(tiny_recipe(4, overrides), builtin_profile(2)).ranks[0];
  };
  const Recipe r =
      tiny_recipe(4, {"parallel.data=4", "train.global_batch_size=4", "train.micro_batch_size=1"});
  // A rank's T tokens make 2 T rows, and it returns 2 T of each of three others: in forward and in
  // backward.
  const int64_t rows = 8 * r.data.seq_length * 2 * r.model.num_hidden_layers;
  const RankPlan flat = plan({});
  CHECK(flat.worst_expert_bytes == rows * r.model.hidden_size * 4);
  CHECK(flat.even_arena_bytes < flat.arena.arena_bytes);
  CHECK(plan({"parallel.hierarchical_all_to_all=2"}).worst_expert_bytes == 2 * flat.worst_expert_bytes);
  CHECK(plan({"parallel.shadow_experts=2"}).worst_expert_bytes == flat.worst_expert_bytes);
  CHECK(plan({"model.moe.capacity_factor=1.0"}).worst_expert_bytes < flat.worst_expert_bytes);
  CHECK(plan({"parallel.expert_dispatch=all_gather"}).worst_expert_bytes == 0);
}

TEST_CASE("MoE models at a skew: rows, bytes and time of the rank that the others wait for", "[plan]") {
  const auto job = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(),
                     {"parallel.data=4", "parallel.expert=4", "model.moe.num_experts=8", "model.moe.top_k=2",
                      "train.global_batch_size=4", "train.micro_batch_size=1"});
    return tiny_recipe(4, overrides);
  };
  const auto at = [](const Recipe& r, double skew, MachineProfile profile) {
    profile.expert_skew = skew;
    return make_plan(r, profile);
  };
  const auto flops = [](const Plan& p, const std::string& op) {
    for (const OpPlan& o : p.ranks[0].ops)
      if (o.name == op) return o.flops;
    return 0.0;
  };
  const Recipe r = job({});
  const MachineProfile host = builtin_profile(2), card = card_profile("h100");
  const Plan even = at(r, 1, host);
  CHECK(even.even_step_seconds == 0);
  const int64_t choices = 2 * r.data.seq_length, layers = r.model.num_hidden_layers;
  for (const int skew : {2, 4}) {
    INFO("skew " << skew);
    const Plan p = at(r, skew, host);
    for (const char* op : {"grouped_matmul", "grouped_matmul_dx", "grouped_matmul_dw"})
      CHECK(flops(p, op) == skew * flops(even, op));
    // Rows leave for the other ranks' experts, and what this rank's experts made of the others' rows goes
    // back: in forward and in backward.
    const int64_t here = skew * choices / 4, sent = (choices - here) + 3 * here;
    const CollectivePlan* rows = nullptr;
    for (const CollectivePlan& c : p.ranks[0].collectives)
      if (c.op == "all_to_all") rows = &c;
    REQUIRE(rows);
    CHECK(rows->wire_bytes == 2 * layers * sent * r.model.hidden_size * 4);
    CHECK(p.step_seconds() > even.step_seconds());
    CHECK(p.even_step_seconds == even.step_seconds());
    // The ranks together compute what they did.
    CHECK(p.mfu() == Approx(even.mfu() * even.step_seconds() / p.step_seconds()));
    CHECK(p.ranks[0].arena.arena_bytes == even.ranks[0].arena.arena_bytes);
    CHECK_THAT(plan_text(p, r), Contains("at even routing") && Contains("even shares"));
    CHECK(json::parse(plan_json(p))["expert_skew"] == skew);
  }
  // Dispatch is as slow as what comes, combine as what leaves: on links that cost bytes alone, a hot rank
  // that has every row takes four times as long for both.
  const Recipe gpu = job({"device=cuda", "precision=bf16", "data.seq_length=64", "model.hidden_size=4096",
                          "model.num_attention_heads=32", "model.num_key_value_heads=8"});
  const auto seconds = [](const Plan& p) {
    double sum = 0;
    for (const CollectivePlan& c : p.ranks[0].collectives)
      if (c.op == "all_to_all") sum += c.seconds;
    return sum;
  };
  CHECK_THAT(plan_text(at(gpu, 1, card), gpu),
             Contains("experts: one launch for all experts, on Hopper's tensor cores (wgmma)"));
  CHECK(json::parse(plan_json(at(gpu, 1, card_profile("a100"))))["experts"] ==
        "one launch for all experts, on tensor cores (mma)");
  const Recipe eight = job({"device=cuda", "precision=fp8", "data.seq_length=64", "model.hidden_size=4096",
                            "model.num_attention_heads=32", "model.num_key_value_heads=8"});
  CHECK_THAT(plan_text(at(eight, 1, card), eight),
             Contains("experts: in FP8 a launch for each expert; of what is not in FP8, one launch for all"));
  MachineProfile quick = card;
  auto device = std::make_shared<DeviceProfile>(*card.device);
  device->launch_seconds.value = 0;
  quick.device = device;
  for (NetworkLevel& level : quick.levels) level.seconds.value = 0;
  CHECK(seconds(at(gpu, 4, quick)) == Approx(4 * seconds(at(gpu, 1, quick))).epsilon(1e-6));

  // A token chooses an expert once, an expert takes its capacity: there are no more rows than that.
  const Recipe many = job({"model.moe.top_k=4"});
  CHECK(flops(at(many, 4, host), "grouped_matmul") == 2 * flops(at(many, 1, host), "grouped_matmul"));
  const Recipe full = job({"model.moe.capacity_factor=1.0"});
  CHECK(flops(at(full, 4, host), "grouped_matmul") == flops(at(full, 1, host), "grouped_matmul"));

  const auto refused = [&](const Recipe& of, double skew) {
    std::string text;
    try {
      check_skew(of, skew);
    } catch (const Error& e) {
      text = e.what();
    }
    return text;
  };
  CHECK(refused(r, 4).empty());
  CHECK_THAT(refused(r, 5), Contains("nearest valid value: 4"));
  CHECK_THAT(refused(tiny_recipe(4), 2), Contains("the model has none"));
  CHECK_THAT(refused(job({"parallel.expert=1"}), 2), Contains("parallel.expert = 1"));
  CHECK_THAT(refused(job({"parallel.shadow_experts=2"}), 2), Contains("parallel.shadow_experts: 0"));
  CHECK_THAT(refused(job({"model.moe.router.selection=expert_choice"}), 2), Contains("leave it out"));
}
