// Costs of layers from a trace: ops are told apart by their roles, under every precision, and never by name.
#include "runtime/plan/pass_costs.h"

#include <catch2/catch.hpp>

#include <numeric>

#include "base/error.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/schedule_plan.h"
#include "runtime/program/recipe_program.h"

using namespace ltrain;

namespace {

Recipe recipe_in(const std::string& precision, const std::string& more = "") {
  return resolve(
      parse_recipe("model: {architecture: llama, vocab_size: 4096, hidden_size: 64, intermediate_size: 160, "
                   "num_hidden_layers: 3, num_attention_heads: 4, max_position_embeddings: 64}\n"
                   "data: {seq_length: 32}\nprecision: " +
                       precision +
                       "\ntrain: {micro_batch_size: 1, global_batch_size: 2}\n"
                       "launch: {threads_per_rank: 2}\n" +
                       more,
                   "r.yaml"),
      1);
}

std::vector<TraceEntry> entries_of(const Recipe& r) {
  return pass_entries(r, builtin_profile(2), PipelineLayout(), priced_end(r));
}

}  // namespace

TEST_CASE("layers have costs of weight gradients in every precision", "[plan]") {
  for (const char* precision : {"fp32", "tf32", "bf16", "fp8"}) {
    INFO(precision);
    const Recipe r = recipe_in(precision);
    const pipeline::LayerCosts c = costs_of_entries(entries_of(r), r);
    for (size_t i = 0; i < 3; ++i) {
      // The weight gradients of a layer take about as long as its forward.
      CHECK(c.weight[i] > 0.25 * c.forward[i]);
      CHECK(c.input[i] > 0.5 * c.forward[i]);
    }
  }
}

TEST_CASE("costs of layers do not depend on the names of ops", "[plan]") {
  const Recipe r = recipe_in("fp8");
  std::vector<TraceEntry> entries = entries_of(r);
  const pipeline::LayerCosts before = costs_of_entries(entries, r);
  for (TraceEntry& e : entries) e.name = "renamed";
  const pipeline::LayerCosts after = costs_of_entries(entries, r);
  CHECK(after.forward == before.forward);
  CHECK(after.input == before.input);
  CHECK(after.weight == before.weight);
}

TEST_CASE("ops without a role that the recipe needs are refused", "[plan]") {
  for (const OpRole role : {OpRole::weight_gradient, OpRole::operand_rounding}) {
    const Recipe r = recipe_in("fp8");
    std::vector<TraceEntry> entries = entries_of(r);
    for (TraceEntry& e : entries)
      if (e.role == role) e.role = OpRole::other;
    CHECK_THROWS_AS(costs_of_entries(entries, r), Error);
  }
}

TEST_CASE("a model without gradients of most weights has costs of its layers", "[plan]") {
  const Recipe r = recipe_in("bf16", "optimizer: {frozen: ['model.layers.*']}\n");
  const pipeline::LayerCosts c = costs_of_entries(entries_of(r), r);
  CHECK(c.forward[0] > 0);
  CHECK(c.weight[0] == 0);
}
