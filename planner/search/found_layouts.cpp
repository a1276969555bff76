#include "planner/search/found_layouts.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/on_all_cores.h"

namespace ltrain {
namespace {

/// Shared costs come from the first layout that needed them, which may have summed them in another order.
constexpr double kTolerance = 1e-9;

void check_trial(const FoundLayout& f, const Trial& trial, const Recipe& recipe) {
  const int64_t bytes = f.largest().total_bytes;
  const double seconds = f.plan.step_seconds();
  if (bytes == trial.bytes && std::abs(seconds - trial.step_seconds) <= kTolerance * seconds) return;
  fail(ExitCode::internal, "ltrain plan --search: {}: tried as {} bytes and {} s, planned as {} and {} s",
       layout_text(f.layout, recipe), trial.bytes, trial.step_seconds, bytes, seconds);
}

}  // namespace

const RankPlan& FoundLayout::largest() const {
  return *std::max_element(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.total_bytes < b.total_bytes;
  });
}

double FoundLayout::exposed_seconds() const {
  double most = 0;
  for (const RankPlan& r : plan.ranks) most = std::max(most, r.exposed_comm_seconds());
  return most;
}

std::vector<FoundLayout> found_layouts(const std::vector<LayoutCandidate>& candidates, const LoadRecipe& load,
                                       const Recipe& recipe, const MachineProfile& profile,
                                       const SearchLimits& limits) {
  std::vector<FoundLayout> out(candidates.size());
  on_all_cores(candidates.size(), [&](size_t i) {
    const LayoutCandidate& c = candidates[i];
    FoundLayout& f = out[i];
    f = {c.layout, settings_of(c.layout, recipe), c.bound, {}};
    std::vector<std::string> overrides;
    for (const auto& [key, value] : f.settings) overrides.push_back(key + "=" + value);
    f.plan = make_plan(resolve(load(overrides), limits.world, limits.ranks_per_node), profile, {}, nullptr,
                       RankPass::repeats);
    if (c.trial.finished) check_trial(f, c.trial, recipe);
  });
  return out;
}

}  // namespace ltrain
