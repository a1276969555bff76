// The trial of a layout: the passes of its ranks on the meta device, without a complete plan.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Figures of a layout's plan, from the same passes of its ranks.
struct Trial {
  double step_seconds = 0;
  int64_t bytes = 0;  ///< bytes of the largest rank
  bool fits = false;
  bool finished = false;  ///< false: stopped early because it does not fit or is too slow
};

/// A trial in progress. Its ranks are independent of each other.
class RankTrials {
 public:
  /// `recipe` is resolved. `profile` must outlive this object. The trial stops early if a rank leaves less
  /// than `keep_free` bytes, or if its step takes longer than `most_seconds`. `least_makespan`: lower bound
  /// on the time of the pipeline's actions. If it exceeds `most_seconds`, the trial stops without a pass and
  /// counts as fitting.
  RankTrials(Recipe recipe, const MachineProfile& profile, PipelinePlan pipeline, double least_makespan,
             int64_t keep_free, double most_seconds);
  size_t size() const { return least_makespan_ > most_seconds_ ? 0 : which_.size(); }
  /// Runs the pass of rank i; does nothing if an earlier rank stopped the trial. Called once for each rank by
  /// any thread. The results do not depend on the order.
  void run(size_t i);
  /// Result, once all have run.
  Trial result();

 private:
  Recipe recipe_;
  const MachineProfile& profile_;
  PipelinePlan pipeline_;
  double least_makespan_;
  int64_t keep_free_;
  double most_seconds_;
  Plan job_;  ///< without ranks
  std::vector<int> which_;
  std::vector<RankPlan> ranks_;
  std::atomic<size_t> ended_by_;  ///< first rank that stopped the trial
};

/// Returns whether the plan leaves `keep_free` bytes of every memory.
bool fits_with(const Plan& plan, int64_t keep_free);

}  // namespace ltrain
