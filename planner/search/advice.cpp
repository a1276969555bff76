#include "planner/search/advice.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/search/found_layouts.h"
#include "planner/search/smallest.h"
#include "runtime/plan/make_plan.h"

namespace ltrain {
namespace {

constexpr size_t kSmallest = 16;     // smallest layouts that are planned
constexpr int kMostWorld = 1 << 18;  // largest number of ranks searched for a fitting layout

auto degrees(const Layout& l) { return std::tuple(l.tensor, l.sequence_parallel, l.pipeline); }

bool smaller_plan(const FoundLayout& a, const FoundLayout& b) {
  return a.largest().total_bytes < b.largest().total_bytes;
}

FoundLayout take_smallest(std::vector<FoundLayout> found) {
  return std::move(*std::min_element(found.begin(), found.end(), smaller_plan));
}

FoundLayout smallest_plan(const Trials& trials, const std::vector<LayoutCandidate>& all,
                          const LoadRecipe& load) {
  const auto plans_of = [&](const std::vector<LayoutCandidate>& candidates) {
    return found_layouts(candidates, load, trials.recipe(), trials.profile(), trials.limits());
  };
  std::vector<LayoutCandidate> few = smallest(all, trials.recipe());
  few.resize(std::min(few.size(), kSmallest));
  FoundLayout least = take_smallest(plans_of(few));
  // Also the layout of these degrees with the smallest bound, which has more micro-batches.
  const LayoutCandidate* bound = nullptr;
  for (const LayoutCandidate& c : all)
    if (degrees(c.layout) == degrees(least.layout) && (!bound || c.bound.bytes < bound->bound.bytes))
      bound = &c;
  FoundLayout same = plans_of({*bound}).front();
  return smaller_plan(same, least) ? same : least;
}

int ranks_per_node(const Trials& trials, int world) {
  const SearchLimits& limits = trials.limits();
  const AssumedNode node = assumed_node(trials.profile(), world, 0);
  const bool known = limits.ranks_per_node < limits.world || node.cards == 0;
  return known ? limits.ranks_per_node : node.cards;
}

/// Smallest number of ranks with a layout that fits, among doublings; 0: none found.
int fitting_world(const Trials& trials) {
  for (int world = 2 * trials.limits().world; world <= kMostWorld; world *= 2) {
    SearchLimits more = trials.limits();
    more.world = world;
    more.ranks_per_node = ranks_per_node(trials, world);
    Trials larger(trials.recipe(), trials.profile(), more);
    std::vector<LayoutCandidate> may_fit = larger.enumerate().candidates;
    std::erase_if(may_fit, [&](const LayoutCandidate& c) { return !trials.may_fit(c); });
    std::vector<LayoutCandidate> fitting;
    larger.try_all(smallest(std::move(may_fit), trials.recipe()), 0, fitting);
    if (!fitting.empty()) return world;
  }
  return 0;
}

}  // namespace

SearchAdvice advise(const Trials& trials, const std::vector<LayoutCandidate>& all, const LoadRecipe& load) {
  if (all.empty()) return {};
  SearchAdvice advice;
  advice.smallest.push_back(smallest_plan(trials, all, load));
  advice.fitting_world = fitting_world(trials);
  return advice;
}

}  // namespace ltrain
