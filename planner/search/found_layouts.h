// Complete plans of candidates.
#pragma once
#include <vector>

#include "planner/search/candidate.h"
#include "planner/search/search.h"

namespace ltrain {

/// Plans of candidates, in their order. `recipe`: of `load`, without more settings. Throws Error (internal)
/// if a plan differs from its trial.
std::vector<FoundLayout> found_layouts(const std::vector<LayoutCandidate>& candidates, const LoadRecipe& load,
                                       const Recipe& recipe, const MachineProfile& profile,
                                       const SearchLimits& limits);

}  // namespace ltrain
