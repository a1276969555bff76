// Advice of a plan: changes that are enough where it does not fit, and MFU.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using Catch::Contains;
using nlohmann::json;
using test::tiny_recipe;

TEST_CASE("a plan that does not fit names the single changes that are enough, with what they cost",
          "[plan]") {
  // 1.5 billion parameters, of which a rank has all 16 bytes: weights, gradients, moments.
  const Recipe r = resolve(
      parse_recipe(
          "name: large\ndevice: cuda\nprecision: bf16\n"
          "model: {architecture: llama, vocab_size: 32000, hidden_size: 2048, intermediate_size: 5632, "
          "num_hidden_layers: 24, num_attention_heads: 16, max_position_embeddings: 2048}\n"
          "data: {seq_length: 2048}\nparallel: {data: 8}\n"
          "train: {micro_batch_size: 4, global_batch_size: 64, train_steps: 10}\n",
          "large.yaml"),
      8);
  MachineProfile card = find_profile("h100");
  Plan plan = make_plan(r, card);
  const auto planned = [&](const std::string& setting) {
    const Recipe changed = resolve(parse_recipe(dump_yaml(r), "large.yaml", {setting}), 8);
    return make_plan(changed, card);
  };
  const auto bytes = [](const Plan& p) { return memory_limits(p).at(0).rank_bytes; };
  // A card on which the second stage of ZeRO is enough and a smaller micro-batch is not.
  const Plan zero = planned("parallel.zero_stage=2"), one = planned("train.micro_batch_size=1");
  REQUIRE(bytes(zero) < bytes(plan));
  card.device_bytes = plan.device_bytes = bytes(zero);
  REQUIRE_FALSE(fits(plan));
  const std::vector<std::string> enough = enough_settings(r, card, plan);
  const auto named = [&](const std::string& setting) {
    return std::count_if(enough.begin(), enough.end(),
                         [&](const std::string& e) { return e.starts_with(setting + " (a rank needs "); });
  };
  INFO(fmt::format("{}", fmt::join(enough, "\n")));
  CHECK(named("parallel.zero_stage: 2") == 1);
  CHECK(named("parallel.zero_stage: 3") == 0);  // the least change
  CHECK(named("train.micro_batch_size: 1") == (bytes(one) <= bytes(zero) ? 1 : 0));
  for (const std::string& e : enough) CHECK_THAT(e, Contains(", a step takes "));
  plan.enough = enough;
  CHECK_THAT(fit_text(plan), Contains("; enough by itself: ") &&
                                 Contains("parallel.zero_stage: 2 (a rank needs ") &&
                                 !Contains("what would help") &&
                                 Contains("`ltrain plan RECIPE --search --gpus 8` finds the fastest layout"));
  // The fastest comes first, and each does fit.
  for (const std::string& e : enough) {
    std::string setting = e.substr(0, e.find(" ("));
    if (setting.find(", with ") != std::string::npos) continue;
    setting.replace(setting.find(": "), 2, "=");
    INFO(setting);
    CHECK(bytes(planned(setting)) <= card.device_bytes);
  }
  // Nothing is enough on a card of a gigabyte.
  card.device_bytes = plan.device_bytes = int64_t{1} << 30;
  CHECK(enough_settings(r, card, plan).empty());
}

TEST_CASE("a plan without a measured peak or a card's figure shows no MFU", "[plan]") {
  const Recipe r = tiny_recipe(1);
  Plan guessed = make_plan(r, builtin_profile(2));
  CHECK_THAT(plan_text(guessed, r),
             Contains("MFU") && Contains("not known; `ltrain bench` measures the peak"));
  CHECK(json::parse(plan_json(guessed))["mfu"].is_null());
  MachineProfile measured = builtin_profile(2);
  measured.measured = true;
  const Plan known = make_plan(r, measured);
  CHECK_THAT(plan_text(known, r), Contains("the fastest matmul of the profile"));
  CHECK(json::parse(plan_json(known))["mfu"] == known.mfu());
}
