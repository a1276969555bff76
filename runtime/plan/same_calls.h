// Compares what the ranks of each group call in a step, before a process is started.
//
// The placement check sees one rank. A rank that makes the same collectives in another order passes it, and
// waits forever in a run. So the step runs on meta for ranks that differ in one axis, and the calls of each
// group that two of them are in must be the same, one by one.
#pragma once
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

/// World ranks whose calls are compared. On the first, the second and the last pipeline stage: all ranks of
/// tensor parallelism 2D, 2.5D and 3D where these are up to `kWholeGrid`, and along each other axis all
/// coordinates of up to `kWholeAxis`, else the first four, the middle one and the last two.
std::vector<int> ranks_to_compare(const Recipe& resolved);
inline constexpr int kWholeGrid = 16, kWholeAxis = 8;

/// Runs a short step on meta for `ranks`: a few micro-batches, with an update of each kind, and an
/// evaluation. Throws Error (internal) that names the group, both ranks and both calls where two ranks of a
/// group differ.
void check_same_calls(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                      const std::vector<int>& ranks);

}  // namespace ltrain
