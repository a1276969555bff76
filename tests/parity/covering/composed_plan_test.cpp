// Plans that a search composes (shared costs of layers, first micro-batches of ranks) compared with full
// plans, over the covering array: bytes are equal, seconds within a thousandth.
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>

#include "planner/search/search_parts.h"
#include "runtime/plan/make_plan.h"
#include "tests/parity/covering/covering_layouts.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Plan of a resolved recipe.
Layout layout_of(const Recipe& r) {
  const Parallel& p = r.parallel;
  Layout l;
  l.tensor = p.tensor, l.sequence_parallel = p.sequence_parallel;
  l.pipeline = p.pipeline, l.virtual_pipeline = p.virtual_pipeline, l.schedule = p.schedule;
  l.context = p.context, l.context_comm = p.context_comm;
  l.expert = p.expert, l.expert_tensor = p.expert_tensor;
  l.data = p.data, l.zero_stage = p.zero_stage, l.shard_group = p.shard_group;
  l.reshard = p.reshard_after_forward;
  l.zero_layers = p.zero_layers;
  l.micro_batch = r.train.micro_batch_size, l.global_batch = r.train.global_batch_size;
  l.recompute = r.recompute.granularity, l.precision = r.precision;
  l.tensor_mode = p.tensor_mode, l.tensor_depth = p.tensor_depth, l.order = p.order;
  l.row_budget = r.model.moe.row_budget.value_or(0);
  return l;
}

/// Parts that a layout does not have.
bool is_of_model(const std::string& setting) {
  for (const char* key : {"parallel.expert_dispatch=", "parallel.expert_chunks=",
                          "parallel.hierarchical_reduction=", "parallel.async_tensor_parallel="})
    if (setting.starts_with(key)) return true;
  return !setting.starts_with("parallel.") && !setting.starts_with("train.");
}

/// Rows of one model on as many ranks share what a search of it shares.
struct Searched {
  Recipe given;
  SearchLimits limits;
  SearchParts parts;
  Searched(const std::vector<std::string>& settings, const MachineProfile& profile, int ranks)
      : given(parse_recipe(kBase, "row", settings)), parts(given, profile, limits) {
    limits.world = limits.ranks_per_node = ranks;
  }
};

}  // namespace

TEST_CASE("covering array: what a search composes of a row is its whole plan", "[covering][search]") {
  const MachineProfile profile = find_profile("h100");
  std::map<std::string, std::unique_ptr<Searched>> searches;
  size_t ranks = 0, pipelines = 0;
  double most_apart = 0;
  for (const Row& row : array()) {
    INFO(text(row));
    // Four times the micro-batches of the row, of which the later ones repeat what those before did.
    std::vector<std::string> all = settings(row),
                             model{"train.global_batch_size=64", "precision=bf16", "device=cuda"};
    all.insert(all.end(), model.begin(), model.end());
    for (const std::string& s : settings(row))
      if (is_of_model(s)) model.push_back(s);
    const Recipe r = resolve(parse_recipe(kBase, "row", all), world(row), world(row));
    std::unique_ptr<Searched>& search = searches[fmt::format("{} {}", fmt::join(model, " "), world(row))];
    if (!search) search = std::make_unique<Searched>(model, profile, world(row));
    const Plan plan = make_plan(r, profile);
    const Trial trial = search->parts.trial(layout_of(r), std::numeric_limits<double>::infinity());
    int64_t bytes = 0;
    for (const RankPlan& rank : plan.ranks) bytes = std::max(bytes, rank.total_bytes);
    REQUIRE(trial.finished);
    CHECK(trial.bytes == bytes);
    CHECK(trial.step_seconds == Approx(plan.step_seconds()).epsilon(1e-3));
    most_apart = std::max(most_apart, std::abs(trial.step_seconds / plan.step_seconds() - 1));
    ranks += plan.ranks.size();
    pipelines += r.parallel.pipeline > 1;
  }
  std::printf(
      "composed and whole: %zu ranks of %zu rows, %zu of them pipelines, %zu searches; seconds at most %.2g "
      "apart\n",
      ranks, array().size(), pipelines, searches.size(), most_apart);
  CHECK(pipelines > array().size() / 4);
  CHECK(searches.size() < array().size() / 2);  // others share what was made before
}
