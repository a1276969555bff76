// Several runs beside each other: their figures, and their losses at the same steps.
#pragma once
#include <string>
#include <vector>

#include "runtime/telemetry/run_report.h"

namespace ltrain {

/// `runs`: at least one; each is named by its path.
std::string comparison_text(const std::vector<RunReport>& runs);
/// A line for each stretch of each run, with a head: run, first_step, last_step, loss, grad_norm,
/// tokens_per_sec, mfu. Empty where a run does not have the number.
std::string comparison_csv(const std::vector<RunReport>& runs);
/// Losses by step, a line for each run, and held-out losses as points.
std::string comparison_svg(const std::vector<RunReport>& runs);

}  // namespace ltrain
