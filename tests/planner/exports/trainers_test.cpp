// Recipes as configurations of torchtitan, NeMo and DeepSpeed. Their own parsers:
// scripts/checks/check-exports.py.
#include <yaml-cpp/yaml.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/json/json.h"
#include "planner/exports/megatron.h"
#include "planner/exports/trainers.h"

using namespace ltrain;
using namespace ltrain::exports;
using Catch::Contains;
using Catch::VectorContains;

namespace {

Recipe recipe_named(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return load_recipe(LTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml", overrides);
}

/// Without the line on the model's shape, and what a program sets.
std::vector<std::string> unsaid_settings(const Exported& e) {
  std::vector<std::string> out;
  for (const std::string& u : e.unsaid)
    if (u.find(" a llama of ") == std::string::npos && u.find("set by the program") == std::string::npos)
      out.push_back(u);
  return out;
}

}  // namespace

TEST_CASE("a recipe is written as torchtitan's TOML, and what has no key there is named") {
  const Exported zero = to_torchtitan(recipe_named("zero3"));
  CHECK(unsaid_settings(zero).empty());
  CHECK_THAT(zero.text, Contains("data_parallel_shard_degree = 2\n") &&
                            Contains("fsdp_reshard_after_forward = \"always\"\n") &&
                            Contains("min_lr_factor = 0.1\n") &&
                            Contains("# not in torchtitan's keys: model.name"));
  const Exported kept = to_torchtitan(recipe_named("zero3", {"parallel.reshard_after_forward=false"}));
  CHECK(unsaid_settings(kept).empty());
  CHECK_THAT(kept.text, Contains("fsdp_reshard_after_forward = \"never\"\n"));
  // Stages: a rank's whole batch, cut into micro-batches.
  const Exported stages = to_torchtitan(recipe_named("pipeline", {"parallel.schedule=1f1b"}));
  CHECK(unsaid_settings(stages).empty());
  CHECK_THAT(stages.text, Contains("local_batch_size = 8\n") && Contains("microbatch_size = 1\n") &&
                              Contains("pipeline_parallel_schedule = \"1F1B\"\n"));
  CHECK(unsaid_settings(to_torchtitan(recipe_named("pipeline"))) ==
        std::vector<std::string>{"parallel.schedule = zb-h1"});
  CHECK(unsaid_settings(to_torchtitan(recipe_named("quickstart"))) ==
        std::vector<std::string>{"parallel.zero_stage = 1"});
  CHECK_THROWS_WITH(to_torchtitan(recipe_named("pipeline", {"parallel.data=-1"})),
                    Contains("parallel.data = -1: torchtitan's local_batch_size"));
}

TEST_CASE("a recipe is written as DeepSpeed's JSON, and what the program has to set is named") {
  const Exported zero = to_deepspeed(recipe_named("zero3", {"precision=bf16"}));
  CHECK(unsaid_settings(zero).empty());
  const auto j = nlohmann::json::parse(zero.text);
  CHECK(unsaid_settings(to_deepspeed(recipe_named("zero3", {"parallel.reshard_after_forward=false"}))) ==
        std::vector<std::string>{"parallel.reshard_after_forward = false"});
  CHECK(j["train_batch_size"] == 8);
  CHECK(j["bf16"]["enabled"] == true);
  CHECK(j["zero_optimization"]["stage"] == 3);
  CHECK(j["optimizer"]["params"]["betas"][1] == 0.95);
  CHECK(j["scheduler"]["params"]["cos_min_ratio"].get<double>() == Approx(0.1));
  CHECK(unsaid_settings(to_deepspeed(recipe_named("context"))) ==
        std::vector<std::string>{"parallel.context = 2"});
  CHECK(unsaid_settings(to_deepspeed(recipe_named("zero3", {"schedule.lr_decay_style=linear"}))) ==
        std::vector<std::string>{"optimizer.min_lr = 0.0001"});
}

TEST_CASE("a recipe is written as overrides of NeMo's fields, also what has a default there") {
  const Exported tensor = to_nemo(recipe_named("tensor", {"precision=bf16"}));
  CHECK(tensor.unsaid.empty());
  const auto y = YAML::Load(tensor.text);
  CHECK(y["mixed_precision"].as<std::string>() == "bf16_mixed");
  CHECK(y["model"]["tensor_model_parallel_size"].as<int>() == 2);
  CHECK(y["model"]["pipeline_model_parallel_size"].as<int>() == 1);
  CHECK(y["model"]["num_moe_experts"].IsNull());
  CHECK(y["model"]["recompute_granularity"].IsNull());
  CHECK(y["model"]["activation_func"].as<std::string>() == "silu");
  CHECK(y["model"]["gated_linear_unit"].as<bool>());
  CHECK_FALSE(y["model"]["add_bias_linear"].as<bool>());
  CHECK(y["model"]["seq_length"].as<int>() == y["dataset"]["seq_length"].as<int>());
  CHECK(y["optimizer"]["adam_beta2"].as<double>() == 0.95);
  CHECK_FALSE(y["ddp"]["use_megatron_fsdp"].as<bool>());

  const Exported zero = to_nemo(recipe_named("zero3"));
  CHECK_THAT(zero.text, Contains("mixed_precision: null\n") && Contains("ckpt_format: fsdp_dtensor\n") &&
                            Contains("data_parallel_sharding_strategy: optim_grads_params\n"));

  const Exported moe = to_nemo(recipe_named("moe"));
  CHECK_THAT(moe.text, Contains("moe_layer_freq: [1, 1"));

  // Differences between a precision preset and the recipe are named.
  const Exported half = to_nemo(recipe_named("quickstart", {"precision=fp16"}));
  CHECK(half.unsaid == std::vector<std::string>{"loss_scale.initial = 65536: fp16_mixed has 4294967296"});
  CHECK_THAT(to_nemo(recipe_named("quickstart", {"precision=fp8", "fp8.margin=2"})).unsaid,
             VectorContains(std::string("fp8.margin = 2: bf16_with_fp8_delayed_scaling_mixed has 0")));
}

TEST_CASE("dtypes of states and offload of activations bring the switches that Megatron-LM asks for") {
  const Exported states =
      to_megatron(recipe_named("quickstart", {"precision=bf16", "optimizer.state_dtype=bf16"}));
  CHECK_THAT(states.text, Contains("--exp-avg-dtype bf16") && Contains("--use-precision-aware-optimizer"));
  CHECK_THAT(to_megatron(recipe_named("quickstart", {"precision=bf16"})).text,
             !Contains("--use-precision-aware-optimizer"));
  CHECK_THAT(to_megatron(recipe_named("quickstart", {"offload.activations.device=cpu"})).text,
             Contains("--cpu-offloading-num-layers 3"));
}
