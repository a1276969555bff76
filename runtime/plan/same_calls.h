// Comparison of the collective calls of the ranks of each group, before a process is started.
//
// The placement check sees one rank. If a rank makes the same collectives in another order, the check passes
// and a run would hang. Therefore the step runs on meta for ranks that differ in one axis, and any two of
// them must make the same calls in each group they share.
#pragma once
#include <vector>

#include "runtime/machines/machine_profile.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

/// World ranks whose calls are compared. On the first, the second and the last pipeline stage: all ranks of
/// 2D, 2.5D and 3D tensor parallelism up to `kWholeGrid`. Along each other axis: all coordinates up to
/// `kWholeAxis`, else the first four, the middle one and the last two.
std::vector<int> ranks_to_compare(const Recipe& resolved);
inline constexpr int kWholeGrid = 16, kWholeAxis = 8;

/// Runs a short step on meta for `ranks`: a few micro-batches, an update of each kind, and an evaluation.
/// Calls in actions that repeat those of an earlier micro-batch (ActionRepeats) are compared once. If two
/// ranks of a group differ, throws Error (internal) with the group, both ranks and both calls.
void check_same_calls(const Recipe& resolved, const MachineProfile& profile, const PipelineLayout& layout,
                      const std::vector<int>& ranks);

}  // namespace ltrain
