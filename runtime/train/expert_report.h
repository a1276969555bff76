// What a user sees of a step's routers: metrics, and warnings about experts that starve and about ranks that
// get more rows than their budget.
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

/// Warns, once for each layer, when its micro-batches of so many steps took at least kOften slices beyond the
/// budget of rows, on average.
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
