// Plans of MoE models with a budget of rows: memory, and what further slices cost at a skew.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"

using namespace ltrain;
using Catch::Contains;

namespace {

Recipe moe_recipe(const std::vector<std::string>& overrides) {
  return resolve(
      parse_recipe("name: tiny\ndevice: cpu\n"
                   "model: {architecture: llama, vocab_size: 257, hidden_size: 48, intermediate_size: 80, "
                   "num_hidden_layers: 3, num_attention_heads: 4, max_position_embeddings: 64, "
                   "moe: {num_experts: 8, top_k: 2}}\n"
                   "parallel: {data: 4, expert: 4}\n"
                   "data: {seq_length: 32}\n"
                   "train: {micro_batch_size: 1, global_batch_size: 4, train_steps: 100}\n"
                   "launch: {threads_per_rank: 2}\n",
                   "tiny.yaml", overrides),
      4, 0);
}

Plan moe_plan(const std::vector<std::string>& overrides, double skew = 1) {
  MachineProfile profile = builtin_profile(2);
  profile.expert_skew = skew;
  return make_plan(moe_recipe(overrides), profile);
}

int64_t arena(const Plan& p) { return p.ranks[0].arena.arena_bytes; }

double flops(const Plan& p, const std::string& op) {
  for (const OpPlan& o : p.ranks[0].ops)
    if (o.name == op) return o.flops;
  return 0.0;
}

int64_t sent(const Plan& p) {
  int64_t bytes = 0;
  for (const CollectivePlan& c : p.ranks[0].collectives)
    if (c.op == "all_to_all") bytes += c.wire_bytes;
  return bytes;
}

}  // namespace

TEST_CASE("a budget of rows: memory between that of even routing and of the worst, the same at every skew",
          "[plan]") {
  const Plan worst = moe_plan({});
  int64_t below = worst.ranks[0].even_arena_bytes;
  for (const char* budget : {"1.25", "1.5", "2", "3"}) {
    INFO(budget);
    const Plan p = moe_plan({std::string("model.moe.row_budget=") + budget});
    CHECK(arena(p) > below);
    CHECK(p.ranks[0].even_arena_bytes == worst.ranks[0].even_arena_bytes);
    for (const double skew : {2.0, 4.0}) {
      const Plan skewed = moe_plan({std::string("model.moe.row_budget=") + budget}, skew);
      CHECK(arena(skewed) == arena(p));
      CHECK(skewed.even_step_seconds == p.step_seconds());
      CHECK(skewed.step_seconds() > p.step_seconds());
    }
    below = arena(p);
  }
  CHECK(below < arena(worst));
  for (const char* budget : {"4", "1e300"})  // all that can come
    CHECK(arena(moe_plan({std::string("model.moe.row_budget=") + budget})) == arena(worst));
  // On one rank all rows are its own.
  CHECK(arena(moe_plan({"parallel.expert=1", "model.moe.row_budget=1"})) ==
        arena(moe_plan({"parallel.expert=1"})));
}

TEST_CASE("a budget of rows: even routing costs no time, what is beyond is computed and brought again",
          "[plan]") {
  const Plan without = moe_plan({}), even = moe_plan({"model.moe.row_budget=1"});
  CHECK(even.step_seconds() == without.step_seconds());
  CHECK(sent(even) == sent(without));
  for (const char* op : {"grouped_matmul", "grouped_matmul_dx", "grouped_matmul_dw"})
    CHECK(flops(even, op) == flops(without, op));
  for (const int skew : {2, 4}) {
    INFO("skew " << skew);
    const Plan free = moe_plan({}, skew), p = moe_plan({"model.moe.row_budget=1"}, skew);
    // Two of three matmuls of an expert up to its activation are made again, in all slices but one.
    CHECK(flops(p, "grouped_matmul") ==
          Approx(flops(without, "grouped_matmul") * (skew + 2.0 / 3 * (skew - 1))));
    for (const char* op : {"grouped_matmul_dx", "grouped_matmul_dw"})
      CHECK(flops(p, op) == skew * flops(without, op));
    CHECK(p.step_seconds() > free.step_seconds());
    CHECK(p.ranks[0].model_flops == without.ranks[0].model_flops);
    const std::string text = plan_text(p, moe_recipe({"model.moe.row_budget=1"}));
    CHECK_THAT(text, Contains("at even routing") && Contains("has room for 1 even shares") &&
                         Contains(fmt::format("{} even shares, in {} slices of at most 1", skew, skew)));
    CHECK(nlohmann::json::parse(plan_json(p))["ranks"][0]["memory_bytes"]["arena"]["row_budget"] == 1);
  }
  // The other ranks' rows beyond the budget leave a third time: k T of this rank's, beside 2 k T and what
  // goes back.
  const RankPlan &a = without.ranks[0], &b = even.ranks[0];
  CHECK(b.worst_expert_bytes * 8 == a.worst_expert_bytes * 9);
  // A budget is of micro-batches: in two parts each has its own.
  const Plan parts = moe_plan({"model.moe.row_budget=1", "parallel.expert_chunks=2"}, 2);
  CHECK(flops(parts, "grouped_matmul") ==
        Approx(flops(moe_plan({"model.moe.row_budget=1"}, 2), "grouped_matmul")));
}

TEST_CASE(
    "a budget of rows at a skew, under every way of cutting and moving: placed, in the memory of even "
    "routing",
    "[plan]") {
  using Settings = std::vector<std::string>;
  for (const Settings& layout :
       {Settings{"parallel.hierarchical_all_to_all=2"}, Settings{"parallel.expert_chunks=3"},
        Settings{"parallel.data=2", "parallel.tensor=2", "parallel.expert=2"},
        Settings{"parallel.data=2", "parallel.tensor=2", "parallel.expert=4", "parallel.expert_tensor=1",
                 "parallel.sequence_parallel=true"},
        Settings{"parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.expert=2",
                 "parallel.zero_stage=2", "model.num_hidden_layers=4"},
        Settings{"recompute.granularity=selective", "recompute.modules=[moe]", "parallel.zero_stage=3"}}) {
    INFO(fmt::format("{}", fmt::join(layout, " ")));
    Settings with = layout;
    with.push_back("model.moe.row_budget=1");
    const Plan even = moe_plan(with), skewed = moe_plan(with, 2);
    CHECK(arena(even) == arena(skewed));
    CHECK(flops(skewed, "grouped_matmul") > 2 * flops(even, "grouped_matmul") * 0.99);
    CHECK(arena(even) <= arena(moe_plan(layout)));
  }
}
