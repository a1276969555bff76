// Recipes as configurations of torchtitan and DeepSpeed. Their own parsers: scripts/check-exports.py.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "runtime/plan/exports/trainers.h"

using namespace ltrain;
using namespace ltrain::exports;
using Catch::Contains;

namespace {

Recipe recipe(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return load_recipe(LTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml", overrides);
}

/// Without the line on the model's shape, and what a program sets.
std::vector<std::string> settings(const Exported& e) {
  std::vector<std::string> out;
  for (const std::string& u : e.unsaid)
    if (u.find(" a llama of ") == std::string::npos && u.find("set by the program") == std::string::npos)
      out.push_back(u);
  return out;
}

}  // namespace

TEST_CASE("a recipe is written as torchtitan's TOML, and what has no key there is named") {
  const Exported zero = to_torchtitan(recipe("zero3"));
  CHECK(settings(zero).empty());
  CHECK_THAT(zero.text, Contains("data_parallel_shard_degree = 2\n") &&
                            Contains("fsdp_reshard_after_forward = \"always\"\n") &&
                            Contains("min_lr_factor = 0.1\n") &&
                            Contains("# not in torchtitan's keys: model.name"));
  // Stages: a rank's whole batch, cut into micro-batches.
  const Exported stages = to_torchtitan(recipe("pipeline", {"parallel.schedule=1f1b"}));
  CHECK(settings(stages).empty());
  CHECK_THAT(stages.text, Contains("local_batch_size = 8\n") && Contains("microbatch_size = 1\n") &&
                              Contains("pipeline_parallel_schedule = \"1F1B\"\n"));
  CHECK(settings(to_torchtitan(recipe("pipeline"))) == std::vector<std::string>{"parallel.schedule = zb-h1"});
  CHECK(settings(to_torchtitan(recipe("quickstart"))) == std::vector<std::string>{"parallel.zero_stage = 1"});
  CHECK_THROWS_WITH(to_torchtitan(recipe("pipeline", {"parallel.data=-1"})),
                    Contains("parallel.data = -1: torchtitan's local_batch_size"));
}

TEST_CASE("a recipe is written as DeepSpeed's JSON, and what the program has to set is named") {
  const Exported zero = to_deepspeed(recipe("zero3", {"precision=bf16"}));
  CHECK(settings(zero).empty());
  const auto j = nlohmann::json::parse(zero.text);
  CHECK(j["train_batch_size"] == 8);
  CHECK(j["bf16"]["enabled"] == true);
  CHECK(j["zero_optimization"]["stage"] == 3);
  CHECK(j["optimizer"]["params"]["betas"][1] == 0.95);
  CHECK(j["scheduler"]["params"]["cos_min_ratio"].get<double>() == Approx(0.1));
  CHECK(settings(to_deepspeed(recipe("context"))) == std::vector<std::string>{"parallel.context = 2"});
  CHECK(settings(to_deepspeed(recipe("zero3", {"schedule.lr_decay_style=linear"}))) ==
        std::vector<std::string>{"optimizer.min_lr = 0.0001"});
}
