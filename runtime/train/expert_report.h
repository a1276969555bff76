// Router statistics for users: step metrics, and warnings about starved experts and about ranks that exceed
// their row budget.
#pragma once
#include <string>
#include <vector>

#include "runtime/program/train_program.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {

/// Fills the MoE fields of `metrics`. Does nothing for a dense model. `tokens`: of the step, padding
/// included.
void add_expert_metrics(StepMetrics& metrics, const ExpertStatistics& experts, int64_t tokens);

/// Warns of layers in which an expert received less than a tenth of its even share for kSteps steps in a row.
/// Warns once until the expert recovers.
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

/// Warns, once per layer, if the micro-batches of kSteps steps needed on average at least kOften slices
/// beyond the row budget.
class RowBudgetWatch {
 public:
  static constexpr int kSteps = 20;
  static constexpr double kOften = 0.25;
  /// `budget`: model.moe.row_budget.
  std::vector<std::string> look(int64_t step, const ExpertStatistics& experts, double budget);

 private:
  struct Count {
    double slices = 0;
    bool said = false;
  };
  std::vector<Count> layers_;
  int steps_ = 0;
};

}  // namespace ltrain
