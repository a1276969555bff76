// ltrain plan --search: the fastest layouts of a recipe that fit.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/plan/search_estimate.h"
#include "runtime/plan/search_space.h"

namespace ltrain {

struct FoundLayout {
  Layout layout;
  std::vector<Setting> settings;  ///< to be given to the recipe
  Estimate estimate;
  Plan plan;  ///< the whole pass
  double tokens_per_second_per_rank() const {
    return plan.tokens_per_second() / static_cast<double>(plan.world);
  }
  const RankPlan& largest() const;  ///< the rank that takes most
  double exposed_seconds() const;   ///< of the rank that waits longest for communication
};

/// What would let a layout fit, where none does.
struct SearchAdvice {
  std::vector<FoundLayout> smallest;  ///< the layout that takes least, planned; empty: no layout at all
  int64_t fitting_world = 0;          ///< ranks, a multiple by two, that have one that fits; 0: none found
};

struct SearchResult {
  int64_t looked_at = 0, allowed = 0;  ///< layouts; those that no rule refuses
  int64_t estimated_to_fit = 0, planned = 0;
  double seconds = 0;              ///< of the whole search
  double ranking_seconds = 0;      ///< of it, without plans
  std::vector<FoundLayout> found;  ///< fastest first
  std::vector<FoundLayout>
      pareto;           ///< of all that were planned: none is both faster and smaller than another
  SearchAdvice advice;  ///< where nothing was found
};

/// A recipe with settings ("key=value") on top of what it was given; as load_recipe.
using LoadRecipe = std::function<Recipe(const std::vector<std::string>&)>;

/// `profile` prices; `count` layouts at most are returned. Layouts are ranked by estimates; those in front
/// are planned, at least twice `count`, until `count` fit, and after them the front of time and memory.
SearchResult search_layouts(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits,
                            size_t count = 10);

/// Whether the plan leaves `keep_free` bytes of every memory.
bool fits_with(const Plan& plan, int64_t keep_free);

std::string search_text(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);
std::string search_json(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);
/// What `a` spends its time and memory on beside what `b` does.
std::string explain_text(const FoundLayout& a, const FoundLayout& b, const Recipe& recipe);

}  // namespace ltrain
