// Drawings of the course of runs: losses, norm, speed, what a step waits for, memory, and the load of
// experts.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "planner/report/pictures.h"
#include "runtime/telemetry/run_report.h"

namespace ltrain {

/// A value over steps, with a line for each run.
struct RunCurve {
  std::string title;  ///< description of the drawing
  std::function<ReportStretch::Mean(const ReportStretch&)> value;
  bool held_out = false;   ///< also points of the held-out losses
  bool from_zero = false;  ///< the axis begins at 0
};
/// Unknown and infinite values have no line. Restarts and stragglers of one run are dashed lines.
std::string curve_svg(const std::vector<RunReport>& runs, const RunCurve& curve);
/// Losses of runs by step, with points of the held-out losses.
std::string loss_svg(const std::vector<RunReport>& runs);
/// Milliseconds of a step as a stacked bar for each stretch: own work, waits for data, for the communication
/// of each axis, and for what is offloaded.
std::string step_time_svg(const RunReport& run);
/// Drawings for the page of one run, or of several compared. A drawing without a value is left out. `layer`:
/// that of the experts' load; -1: the least even one of the last quarter.
std::vector<Picture> run_pictures(const std::vector<RunReport>& runs, int64_t layer = -1);
/// Paragraphs with the main results of one run: steps, loss, tokens, restarts and stragglers.
std::vector<std::string> run_lead(const RunReport& run);

}  // namespace ltrain
