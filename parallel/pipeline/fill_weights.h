// W where it costs least: a split backward's weight parts wait for nobody, so that they can fill idle time.
#pragma once
#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// The schedule with its W actions placed for these costs. Each rank keeps its order of F, B and I, and its
/// pairs. It runs a W where it would otherwise wait for at least a share of it, and before an F when it may
/// not keep more: no rank keeps more, in the unit of StageCosts::activation, than the one that keeps the most
/// in the given schedule. Of several shares the fastest is taken. (After the heuristic of arXiv:2401.10241,
/// section 3, whose bound is one for all ranks, too.) The given schedule when none is faster, and when it
/// splits no backward.
Schedule fill_with_weights(const Schedule& schedule, const StageCosts& costs);

}  // namespace ltrain::pipeline
