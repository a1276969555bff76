// Config.json texts with published values: each is a recipe, has as many parameters as transformers' model of
// it, and a plan. The oracle is transformers on its meta device: tests/golden/published_configs.json, written
// by scripts/golden/make-parameter-counts.py.
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "base/json/json.h"
#include "runtime/plan/make_plan.h"
#include "runtime/weights/hf_folder.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using nlohmann::json;

namespace {

json published() {
  std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/published_configs.json");
  return json::parse(in);
}

Plan plan_of_config(const json& config) {
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
    const Plan plan = plan_of_config(of.at("config"));
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

// Added up by hand from the report's widths: a layer, the projection and three norms. Embedding and output
// layer are the model's own.
TEST_CASE("a module of DeepSeek-V3 that predicts a token more has the parameters of its parts", "[plan]") {
  const json of = published().at("DeepSeek-V3");
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/config.json";
  std::ofstream(path) << of.at("config");
  const auto count = [&](int modules) {
    const Recipe r = parse_recipe("{}", "published",
                                  {"model.from=" + path, "data.seq_length=1024",
                                   fmt::format("model.num_nextn_predict_layers={}", modules)});
    int64_t n = 0;
    for (const auto& [name, shape] : parameter_shapes(r.model)) n += shape.elements();
    return n;
  };
  const int64_t h = 7168, q = 1536, kv = 512, heads = 128, f = 2048;
  const int64_t attention =
      q * h + q + heads * 192 * q + (kv + 64) * h + kv + heads * (128 + 128) * kv + heads * 128 * h;
  const int64_t layer = attention + 2 * h + 256 * h + (256 + 1) * 3 * f * h;
  CHECK(count(0) == of.at("parameters").get<int64_t>());
  CHECK(count(1) - count(0) == layer + 2 * h * h + 3 * h);
}

TEST_CASE("negative control: a width that is one head off has another count", "[plan]") {
  json of = published().at("Qwen3-0.6B");
  of["config"]["head_dim"] = 120;
  CHECK(plan_of_config(of["config"]).parameters != of["parameters"].get<int64_t>());
}
