// ltrain plan --search: the fastest layouts of a recipe that fit.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "planner/search/search_parts.h"
#include "planner/search/search_space.h"
#include "runtime/plan/plan.h"

namespace ltrain {

struct FoundLayout {
  Layout layout;
  std::vector<Setting> settings;  ///< to be given to the recipe
  Bound bound;
  Plan plan;  ///< the whole pass
  double tokens_per_second_per_rank() const {
    return plan.tokens_per_second() / static_cast<double>(plan.world);
  }
  const RankPlan& largest() const;  ///< the rank that takes most
  double exposed_seconds() const;   ///< of the rank that waits longest for communication
};

/// A layout whose trial fits.
struct TriedLayout {
  Layout layout;
  double step_seconds = 0;
  int64_t bytes = 0;  ///< of the rank that takes most
};

/// What would let a layout fit, where none does.
struct SearchAdvice {
  std::vector<FoundLayout> smallest;  ///< the layout that takes least, planned; empty: no layout at all
  int64_t fitting_world = 0;          ///< ranks, a multiple by two, that have one that fits; 0: none found
};

struct SearchResult {
  int64_t looked_at = 0, allowed = 0;  ///< layouts; those that no rule refuses
  int64_t may_fit = 0;                 ///< of them, those whose bound of memory fits
  /// Those that were tried by the passes of their plans: with costs of layers that layouts share, and whole.
  int64_t composed = 0, whole = 0;
  int64_t variants = 0;      ///< of them, those that SearchLimits::variants added
  int64_t untried = 0;       ///< that may be faster than what was found: 0, unless most_trials were too few
  int64_t slower = 0;        ///< not tried, since their bounds say that they are slower than what was found
  int64_t wrong_bounds = 0;  ///< layouts of lower time or bytes than their bounds: a defect, if there is one
  double seconds = 0;        ///< of the search
  double bound_seconds = 0;  ///< of it, until all had their bounds
  std::vector<FoundLayout> found;   ///< fastest first, but those within SearchLimits::tie by their memory
  std::vector<FoundLayout> pareto;  ///< of all that were tried: none is both faster and smaller than another
  std::vector<TriedLayout> tried;   ///< of all that were tried those that fit, fastest first
  SearchAdvice advice;              ///< where nothing was found
};

/// A recipe with settings ("key=value") on top of what it was given; as load_recipe.
using LoadRecipe = std::function<Recipe(const std::vector<std::string>&)>;

/// `profile` prices; `count` layouts at most are returned: the fastest that fit. Layouts are tried in the
/// order of their bounds, until none that is left can be faster than the last of those that are returned, or
/// `most_trials` were made. What is returned is planned whole; Error (internal) where its trial said
/// otherwise.
SearchResult search_layouts(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits,
                            size_t count = 10, int64_t most_trials = 1000);

std::string search_text(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);
std::string search_json(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);
/// What `a` spends its time and memory on beside what `b` does.
std::string explain_text(const FoundLayout& a, const FoundLayout& b, const Recipe& recipe);

}  // namespace ltrain
