// Attempts of a job, one after the other, with the waits between them.
#pragma once
#include <functional>

#include "runtime/launch/supervisor/caught_signals.h"
#include "runtime/launch/supervisor/supervisor.h"

namespace ltrain {

/// Runs `attempt` until no restart follows, and returns the exit code of the job. `attempt` gets the options
/// of this attempt, and whether another one may follow, for which the signals stay caught. Sets `job` but for
/// its exit code. With several nodes the launchers meet after each failed attempt, and node 0 decides.
int run_attempts(const SuperviseOptions& options, CaughtSignals& signals, JobEnd& job,
                 const std::function<AttemptEnd(const SuperviseOptions&, bool another)>& attempt);

}  // namespace ltrain
