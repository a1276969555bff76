#include "planner/search/rank_trials.h"

#include <algorithm>

#include "runtime/plan/memory_limits.h"
#include "runtime/plan/schedule_plan.h"

namespace ltrain {

RankTrials::RankTrials(Recipe recipe, const MachineProfile& profile, PipelinePlan pipeline,
                       double least_makespan, int64_t keep_free, double most_seconds)
    : recipe_(std::move(recipe)),
      profile_(profile),
      pipeline_(std::move(pipeline)),
      least_makespan_(least_makespan),
      keep_free_(keep_free),
      most_seconds_(most_seconds),
      job_(job_of(recipe_, profile)),
      which_(ranks_to_plan(recipe_, profile)),
      ranks_(which_.size()),
      ended_by_(which_.size()) {}

void RankTrials::run(size_t i) {
  if (i > ended_by_) return;
  ranks_[i] = compose_rank(recipe_, profile_, pipeline_.layout, which_[i], job_.threads_per_rank);
  Plan alone = job_;
  alone.ranks = {ranks_[i]};
  // A lower bound (place_actions). Only the passes of all ranks give the time of pairs.
  double actions = std::max(pipeline_.timing.makespan, least_makespan_);
  if (pipeline_.layout.schedule.has_pairs()) {
    actions = 0;
    for (const ActionTime& a : ranks_[i].actions) actions += a.seconds;
  }
  double seconds = ranks_[i].step_seconds + actions;
  if (const std::vector<ActionTime>& a = ranks_[i].actions;
      i == 0 && !a.empty() && a.front().gathering > 0 &&
      pipeline_.layout.schedule.order.front().front().stage == 0)
    seconds += std::max(0.0, a.front().end - std::max(pipeline_.costs.forward.front(),
                                                      a.front().seconds));  // the first of all actions
  if (fits_with(alone, keep_free_) && seconds <= most_seconds_) return;
  size_t before = ended_by_;
  while (i < before && !ended_by_.compare_exchange_weak(before, i)) {
  }
}

Trial RankTrials::result() {
  Trial t;
  if (size() == 0) {
    t.fits = true;
    return t;
  }
  const bool ended = ended_by_ < which_.size();
  Plan plan = job_;
  plan.ranks = std::move(ranks_);
  plan.ranks.resize(ended ? ended_by_ + 1 : which_.size());
  for (const RankPlan& r : plan.ranks) t.bytes = std::max(t.bytes, r.total_bytes);
  t.fits = fits_with(plan, keep_free_);
  if (ended) return t;
  place_actions(plan.ranks, recipe_, profile_, pipeline_);
  t.step_seconds = plan.step_seconds();
  t.finished = t.step_seconds <= most_seconds_;
  return t;
}

bool fits_with(const Plan& plan, int64_t keep_free) {
  for (MemoryLimit limit : memory_limits(plan)) {
    limit.available_bytes -= keep_free;
    if (!limit.fits()) return false;
  }
  return true;
}

}  // namespace ltrain
