// The step "refine" of a search: variants of the fastest layouts that fit, and offload for those that do not.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/search/candidate.h"
#include "planner/search/trials.h"

namespace ltrain {

/// Tries variants of the fastest layouts that fit, and offload for layouts that would be as fast but do not
/// fit. If nothing fits, tries offload for the smallest. Variants that are neither faster nor smaller than
/// their origin are dropped. `all`: every candidate of the space. `fitting`: fastest first, also on return.
/// Returns the number of layouts tried.
int64_t refine(Trials& trials, const std::vector<LayoutCandidate>& all,
               std::vector<LayoutCandidate>& fitting);

}  // namespace ltrain
