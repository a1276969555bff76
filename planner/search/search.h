// ltrain plan --search: the fastest layouts of a recipe that fit. Branch and bound, best bound first:
// enumerate, bound, try (trials.h), refine (refine.h), report. docs/layouts.md
// explains each step.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "planner/search/layout.h"
#include "planner/search/search_parts.h"
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct FoundLayout {
  Layout layout;
  std::vector<Setting> settings;  ///< settings to add to the recipe
  Bound bound;
  Plan plan;  ///< complete plan
  double tokens_per_second_per_rank() const {
    return plan.tokens_per_second() / static_cast<double>(plan.world);
  }
  const RankPlan& largest() const;  ///< the rank with the most memory
  double exposed_seconds() const;   ///< time of the rank that waits longest for communication
};

/// A layout whose trial fits.
struct TriedLayout {
  Layout layout;
  double step_seconds = 0;
  int64_t bytes = 0;  ///< bytes of the largest rank
};

/// Advice if no layout fits.
struct SearchAdvice {
  std::vector<FoundLayout> smallest;  ///< plan of the smallest layout; empty: no layout exists
  /// Smallest number of ranks with a fitting layout, among doublings; 0: none found.
  int64_t fitting_world = 0;
};

struct SearchResult {
  int64_t looked_at = 0, allowed = 0;  ///< layouts; layouts allowed by the rules
  int64_t may_fit = 0;                 ///< allowed layouts whose memory bound fits
  /// Layouts tried with the passes of their plans: with shared layer costs, and with their own.
  int64_t composed = 0, whole = 0;
  int64_t variants = 0;  ///< tried layouts that SearchLimits::variants added
  /// Layouts that may be faster than those found: 0 unless most_trials was too small.
  int64_t untried = 0;
  int64_t slower = 0;  ///< layouts not tried because their bounds are slower than those found
  /// Layouts with less time or memory than their bounds, which indicates a defect.
  int64_t wrong_bounds = 0;
  double seconds = 0;              ///< duration of the search
  double bound_seconds = 0;        ///< duration until all bounds were computed
  std::vector<FoundLayout> found;  ///< fastest first; ties within SearchLimits::tie by memory
  /// Pareto front of all tried layouts: none is both faster and smaller than another.
  std::vector<FoundLayout> pareto;
  std::vector<TriedLayout> tried;  ///< all tried layouts that fit, fastest first
  SearchAdvice advice;             ///< set if nothing was found
};

/// Loads the recipe with additional settings ("key=value"), like load_recipe.
using LoadRecipe = std::function<Recipe(const std::vector<std::string>&)>;

/// Searches for the fastest layouts that fit, and returns at most `count`. `profile`: prices. Layouts are
/// tried in the order of their bounds, until no remaining one can be faster than the last returned one, or
/// `most_trials` were tried. Returned layouts have complete plans. Throws Error (internal) if a plan differs
/// from its trial.
SearchResult search_layouts(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits,
                            size_t count = 10, int64_t most_trials = 1000);

std::string search_text(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);
std::string search_json(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);
/// Differences in time and memory between `a` and `b`.
std::string explain_text(const FoundLayout& a, const FoundLayout& b, const Recipe& recipe);

}  // namespace ltrain
