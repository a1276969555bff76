// The smallest candidates of a search, for offload and for advice where nothing fits.
#pragma once
#include <vector>

#include "planner/search/candidate.h"

namespace ltrain {

/// Limit of layers times micro-batches (of a pipeline rank) for work that takes many complete plans.
constexpr int64_t kMostOpsToChoose = 4096;

/// The smallest layout of each tensor degree (with and without sequence parallelism) and pipeline degree,
/// smallest first. Bounds are compared in steps of 5 %, and ties go to fewer micro-batches, which are
/// faster to plan. The bound does not include that a pipeline keeps several micro-batches. Therefore each
/// degree also gets the layout that keeps the least, if its plan does not take too long.
std::vector<LayoutCandidate> smallest(std::vector<LayoutCandidate> candidates, const Recipe& recipe);

}  // namespace ltrain
