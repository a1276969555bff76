// Parts of the sbatch script that start a job again: after a signal, a preemption, a lost rank or node, and
// not where another attempt would end the same way.
#pragma once
#include <string>

namespace ltrain::app {

/// Attempts in a row that lost a rank and saved nothing, after which the script ends the job with 76.
inline constexpr int kIdleAttempts = 3;

/// Shell functions and variables that requeue_end() uses. They read $output_dir.
std::string requeue_functions();

/// Text after the step's command, which runs in the background: waits for it and requeues the job.
/// `codes`: pattern of `case` for the exit codes after which another attempt may help.
std::string requeue_end(const std::string& codes);

}  // namespace ltrain::app
