// Training loop of one rank: setup from the plan, steps, evaluations, checkpoints, shutdown.
#pragma once
#include <functional>
#include <optional>

#include "base/error.h"
#include "runtime/launch/job.h"
#include "runtime/launch/restarts.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct TrainerOptions {
  bool force = false;  ///< start even if the plan exceeds the host's memory
  int64_t steps = 0;   ///< stop after this many steps; 0: as in the recipe. The value of rank 0 counts.
  std::optional<RestartNote> restart;  ///< set where the launcher has started the ranks again
  /// Error of work that this rank's process does beside training; null: it does none. All ranks then save and
  /// end with that error. Set on all ranks of a job or on none.
  std::function<std::optional<Error>()> work_error;
  /// A resolved recipe with other data.stages, given as an override's text, on every rank. Throws Error.
  /// Null: the run takes no changes (StageChanges).
  std::function<Recipe(const Recipe& recipe, const std::string& stages)> with_stages;
};

/// Trains a resolved recipe. Returns done, or preempted after a stop request was answered with a checkpoint.
/// Throws Error in all other cases.
ExitCode train(const Recipe& recipe, Job& job, const TrainerOptions& options);

}  // namespace ltrain
