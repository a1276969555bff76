// Costs of layers, from the trace of a model's first micro-batches.
#pragma once
#include <functional>
#include <vector>

#include "kernels/meta/meta.h"
#include "parallel/pipeline/choose_schedule.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Calls f(op, seconds, after_head) for the compute ops of one micro-batch as later ones of a step have them.
/// `entries`: of pass_entries. `seconds`: from the end of the op before, so that a wait for a collective
/// counts for the op that waits. `after_head`: in the backward of layers before the head.
///
/// Ops that round operands of FP8 matmuls are those of the second micro-batch, because the first one also
/// rounds weights; all others are those of the first.
void each_usual_op(const std::vector<TraceEntry>& entries,
                   const std::function<void(const TraceEntry& op, double seconds, bool after_head)>& f);

/// Costs of the layers of a model of `layers` layers. Fails if a layer has no forward or no backward, or if
/// no op has a role that the recipe needs.
pipeline::LayerCosts costs_of_entries(const std::vector<TraceEntry>& entries, const Recipe& recipe);

}  // namespace ltrain
