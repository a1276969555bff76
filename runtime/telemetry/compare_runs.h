// Comparison of several runs: their figures, and their losses at the same steps.
#pragma once
#include <string>
#include <vector>

#include "runtime/telemetry/run_report.h"

namespace ltrain {

/// `runs`: at least one; each is named by its path.
std::string comparison_text(const std::vector<RunReport>& runs);
/// CSV with a header and one line for each stretch of each run: run, first_step, last_step, loss, grad_norm,
/// tokens_per_sec, mfu. A field is empty if the run lacks the value.
std::string comparison_csv(const std::vector<RunReport>& runs);

}  // namespace ltrain
