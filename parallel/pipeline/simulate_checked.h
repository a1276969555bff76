// Timing of a schedule that was checked before, or derived from one: checks take longer than the simulation.
#pragma once
#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// simulate() without checks; undefined for a schedule or costs that it would refuse.
Timing simulate_checked(const Schedule& schedule, const StageCosts& costs);

}  // namespace ltrain::pipeline
