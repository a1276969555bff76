// The timing of a schedule that was checked before, or made of one that was: checks take longer than it does.
#pragma once
#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// As simulate(); undefined for a schedule or costs that it would refuse.
Timing simulate_checked(const Schedule& schedule, const StageCosts& costs);

}  // namespace ltrain::pipeline
