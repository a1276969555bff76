// What a user sees of a step's routers: metrics, and a warning about experts that starve.
#pragma once
#include <string>
#include <vector>

#include "runtime/program/train_program.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {

/// Fills the fields of MoE models; nothing for a dense model.
void add_expert_metrics(StepMetrics& metrics, const ExpertStatistics& experts);

/// Warns of layers in which an expert has had less than a tenth of its even share for so many steps in a row,
/// once until it recovers.
class StarvationWatch {
 public:
  static constexpr int kSteps = 20;
  std::vector<std::string> look(int64_t step, const ExpertStatistics& experts);

 private:
  struct Count {
    int steps = 0;
    bool said = false;
  };
  std::vector<std::vector<Count>> counts_;
};

}  // namespace ltrain
