// The choice of recompute.granularity: auto, and the policies that a recipe's words mean.
#include <catch2/catch.hpp>

#include "runtime/plan/make_plan.h"
#include "runtime/program/recipe_program.h"

using namespace ltrain;

namespace {

Recipe nine_layers(const std::vector<std::string>& overrides, int ranks = 1) {
  return resolve(parse_recipe("model: {vocab_size: 257, hidden_size: 64, intermediate_size: 256, "
                              "num_hidden_layers: 9, num_attention_heads: 4, max_position_embeddings: 128}\n"
                              "data: {seq_length: 128}\n"
                              "train: {micro_batch_size: 8, global_batch_size: 16}\n"
                              "device: cpu\n",
                              "r.yaml", overrides),
                 ranks);
}

int64_t bytes_of(const Recipe& r) {
  const Plan plan = make_plan(r, builtin_profile(2));
  int64_t most = 0;
  for (const RankPlan& p : plan.ranks) most = std::max(most, p.total_bytes);
  return most;
}

std::string budget(int64_t bytes) { return fmt::format("recompute.budget={}", bytes); }

}  // namespace

TEST_CASE("the words of a recipe name runs of layers and tensors") {
  const auto of = [](std::vector<std::string> o) { return recompute_options(nine_layers(o)); };
  CHECK(of({}) == RecomputeOptions{});
  CHECK(of({"recompute.granularity=full"}).run == 1);
  CHECK(of({"recompute.granularity=full", "recompute.num_layers=sqrt"}).run == 3);
  const RecomputeOptions block =
      of({"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=4"});
  CHECK((block.run == 1 && block.layers == 4));
  const RecomputeOptions some = of({"recompute.granularity=selective", "recompute.modules=[mlp, core_attn]",
                                    "recompute.tensors={mlp_hidden: keep, residual: recompute}"});
  for (BlockTensor t : {BlockTensor::mlp_activation, BlockTensor::attention, BlockTensor::residual})
    CHECK(some.tensors.has(t));
  for (BlockTensor t : {BlockTensor::mlp_hidden, BlockTensor::qkv, BlockTensor::mlp_norm})
    CHECK_FALSE(some.tensors.has(t));
}

TEST_CASE("auto recomputes as little as its budget allows, and says when nothing fits") {
  const std::string automatic = "recompute.granularity=auto";
  const MachineProfile profile = builtin_profile(2);
  const int64_t stored = bytes_of(nine_layers({})),
                full = bytes_of(nine_layers({"recompute.granularity=full"}));
  REQUIRE(full < stored);
  CHECK(pipeline_layout(nine_layers({automatic, budget(stored)}), profile).recompute == RecomputeOptions{});
  double slowest = 0;
  for (const int64_t allowed : {stored - 1, (stored + full) / 2, full}) {
    const Recipe r = nine_layers({automatic, budget(allowed)});
    const PipelineLayout layout = pipeline_layout(r, profile);
    CHECK(layout.recompute->any());
    CHECK(bytes_of(r) <= allowed);
    const Plan plan = make_plan(r, profile);
    CHECK(plan.step_seconds() >= slowest);  // less memory is never faster
    slowest = plan.step_seconds();
    CHECK(unpack_pipeline_layout(pack(layout)).recompute == layout.recompute);
  }
  CHECK(make_plan(nine_layers({"recompute.granularity=full"}), profile).step_seconds() >= slowest);
  CHECK_THROWS_WITH(
      pipeline_layout(nine_layers({automatic, budget(1 << 20)}), profile),
      Catch::Contains("recompute.budget = 1048576: a rank needs") && Catch::Contains("nearest valid"));
  const Recipe two = nine_layers({automatic, budget(full), "parallel.pipeline=3"}, 3);
  const PipelineLayout staged = pipeline_layout(two, profile);
  const PipelineLayout read = unpack_pipeline_layout(pack(staged));
  CHECK(read.recompute == staged.recompute);
  CHECK(read.stage_layers == staged.stage_layers);
}

TEST_CASE("auto recomputes experts as its budget asks, beside a budget of rows") {
  for (const char* rows : {"1", "1.5"}) {
    INFO("a budget of " << rows << " even shares");
    const auto of = [&](std::vector<std::string> overrides) {
      for (const char* setting :
           {"model.architecture=llama", "model.moe.num_experts=4", "parallel.data=2", "parallel.expert=2"})
        overrides.push_back(setting);
      overrides.push_back(std::string("model.moe.row_budget=") + rows);
      return nine_layers(overrides, 2);
    };
    const int64_t stored = bytes_of(of({})), full = bytes_of(of({"recompute.granularity=full"}));
    REQUIRE(full < stored);
    for (const int64_t allowed : {stored - 1, (stored + full) / 2}) {
      const Recipe r = of({"recompute.granularity=auto", budget(allowed)});
      CHECK(pipeline_layout(r, builtin_profile(2)).recompute->any());
      CHECK(bytes_of(r) <= allowed);
    }
  }
}
