// Reports of rank 0 on a run: lines for people; metrics.jsonl, TensorBoard and Prometheus for programs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/job.h"
#include "runtime/launch/restarts.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/expert_report.h"
#include "runtime/train/stragglers.h"

namespace ltrain {

/// Silent until open() is called, which rank 0 alone does.
class RunReports {
 public:
  /// `step`: the run goes on after it. Says what restarted it, if anything. Throws Error (storage).
  void open(const Recipe& recipe, int64_t step, const std::optional<RestartNote>& restart);

  /// Prints lines; an empty one is nothing.
  void say(const std::vector<std::string>& lines);

  /// Writes a step with rank 0's GPU, and the ranks at the end of an interval. Warns of slow ranks, starved
  /// experts and row budgets.
  void step(const StepMetrics& m, const Recipe& recipe, const ExpertStatistics& experts, const RankInfo& rank,
            StragglerWatch& stragglers);
  /// Writes the held-out losses after `step`.
  void evaluation(int64_t step, const Recipe& recipe, const std::vector<SetResult>& results);
  /// Writes what a routing probe after `step` found.
  void routing(int64_t step, const RoutingChurn& churn);
  /// Ends the files and says `text` last.
  void finish(const std::string& text);

 private:
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Progress> progress_;
  StarvationWatch starvation_;
  RowBudgetWatch beyond_budget_;
};

}  // namespace ltrain
