// Heat maps of an MoE model's layers over the steps of a run: load, drops, churn of routers.
#pragma once
#include <string>
#include <vector>

#include "planner/report/pictures.h"
#include "runtime/telemetry/run_report.h"

namespace ltrain {

/// Experts of an MoE model: evenness of the load for each layer over the steps, and drops in the tooltips.
std::string expert_map_svg(const RunReport& run);
/// Shares of choices that exceeded a capacity, and that a routing probe found changed, by layer and step.
std::string drop_map_svg(const RunReport& run);
std::string churn_map_svg(const RunReport& run);
/// Shares of a layer's choices by expert and step.
std::string load_map_svg(const RunReport& run, size_t layer);
/// The maps that the run has values for. `layer`: as in run_pictures().
std::vector<Picture> expert_pictures(const RunReport& run, int64_t layer);

}  // namespace ltrain
