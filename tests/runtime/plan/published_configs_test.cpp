// Config.json texts with published values: each is a recipe, has as many parameters as transformers' model of
// it, and a plan. The oracle is transformers on its meta device: tests/golden/published_configs.json, written
// by scripts/make-parameter-counts.py.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/plan/plan.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using nlohmann::json;

namespace {

json published() {
  std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/published_configs.json");
  return json::parse(in);
}

Plan plan_of(const json& config) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/config.json";
  std::ofstream(path) << config;
  const std::string text = "name: published\ndevice: cpu\nprecision: bf16\nmodel: {from: " + path +
                           "}\n"
                           "data: {seq_length: 1024}\n"
                           "parallel: {zero_stage: 3}\n"
                           "train: {micro_batch_size: 1, global_batch_size: 8, train_steps: 10}\n"
                           "launch: {threads_per_rank: 1}\n";
  return make_plan(resolve(parse_recipe(text, "published.yaml"), 8), builtin_profile(1));
}

}  // namespace

TEST_CASE("published models are planned, with as many parameters as transformers counts", "[plan]") {
  const json all = published();
  REQUIRE(all.size() >= 30);
  std::set<std::string> seen;
  for (const auto& [name, of] : all.items()) {
    INFO(name);
    const Plan plan = plan_of(of.at("config"));
    CHECK(plan.parameters == of.at("parameters").get<int64_t>());
    REQUIRE_FALSE(plan.ranks.empty());
    // An eighth of weights, gradients and states of each rank at least.
    CHECK(plan.ranks[0].arena.arena_bytes > plan.parameters);
    CHECK(plan.ranks[0].model_flops > 0);
    seen.insert(of.at("config").at("model_type").get<std::string>());
  }
  for (const Family* f : families()) {
    INFO(f->name);
    CHECK(seen.count(f->name) == 1);
  }
}

TEST_CASE("negative control: a width that is one head off has another count", "[plan]") {
  json of = published().at("Qwen3-0.6B");
  of["config"]["head_dim"] = 120;
  CHECK(plan_of(of["config"]).parameters != of["parameters"].get<int64_t>());
}
