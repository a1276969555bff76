// The training loop of one rank: set-up by the plan, steps, evaluation, checkpoints, the end.
#pragma once
#include "runtime/launch/job.h"
#include "runtime/plan/plan.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct TrainerOptions {
  bool force = false;  ///< start although the plan exceeds the host's memory
  int64_t steps = 0;   ///< end after so many; 0: as the recipe says. That of rank 0 counts.
};

/// Trains by a resolved recipe. Returns done, or preempted after a stop request was met with a checkpoint.
/// Throws Error for everything else.
ExitCode train(const Recipe& recipe, Job& job, const TrainerOptions& options);

}  // namespace ltrain
