// Advice of a search that found no layout that fits.
#pragma once
#include <vector>

#include "planner/search/candidate.h"
#include "planner/search/search.h"
#include "planner/search/trials.h"

namespace ltrain {

/// The smallest layout for this number of ranks, and the number of ranks that would fit. `all`: every
/// candidate of the space.
SearchAdvice advise(const Trials& trials, const std::vector<LayoutCandidate>& all, const LoadRecipe& load);

}  // namespace ltrain
