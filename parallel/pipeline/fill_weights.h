// Placement of W by cost: no action waits for a weight gradient, so that W can fill idle time.
#pragma once
#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// Returns the schedule with W actions placed for these costs. Each rank keeps its order of F, B and I, and
/// its pairs. It runs a W if it would otherwise wait for at least a share of the W's time, and before an F if
/// it may not keep more activations. No rank keeps more, in the unit of StageCosts::activation, than the
/// largest rank of the given schedule. The fastest of several shares is taken. (After the heuristic of
/// arXiv:2401.10241, section 3, which also has one limit for all ranks.) Returns the given schedule if none
/// is faster, or if it splits no backward. `schedule` must pass check().
Schedule fill_with_weights(const Schedule& schedule, const StageCosts& costs);

}  // namespace ltrain::pipeline
