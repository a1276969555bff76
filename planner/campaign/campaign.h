// Time and cost of a complete run with failures. This file uses formulas, campaign_simulation.h simulates
// events.
#pragma once
#include <cstdint>
#include <string>

#include "planner/campaign/campaign_settings.h"
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct CampaignJob {
  int64_t gpus = 1, gpus_per_node = 8;
  double work_seconds = 0;  ///< all steps and evaluations without failures
  double step_seconds = 1;
  double checkpoint_bytes = 0;
  bool async_save = true;     ///< training continues while files are written
  int64_t save_interval = 0;  ///< steps; 0: the best interval
  int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

/// Job and settings converted to seconds and failures per second.
struct CampaignTerms {
  /// Failures per second of the whole job. Hardware failures are those after which a node is replaced.
  double failure_rate = 0, hardware_rate = 0;
  double restart = 0;  ///< detection, restart and load
  /// A save stops training for `stall`, and is complete `write` later.
  double stall = 0, write = 0;
  double maintenance_interval = 0, maintenance = 0;  ///< including save and restart; 0: none
  double repair = 0;
  int64_t spares = 0;
  double slowdown = 1;  ///< factor on the step time because of the slowest rank
};
CampaignTerms campaign_terms(const CampaignJob& job, const CampaignSettings& settings);

/// Breakdown of the total time in seconds, and the total number of failures.
struct CampaignTimes {
  double total = 0, work = 0, stragglers = 0, saves = 0, restarts = 0, lost = 0, spare_waits = 0,
         maintenance = 0;
  double failures = 0;
  double effective() const { return total > 0 ? (work + stragglers) / total : 0; }
};

/// Times with a save every `interval` seconds of work at the planned speed. Failures are a Poisson process
/// and also happen during restarts. After Daly (2006, doi:10.1016/j.future.2004.11.016, equation 20), with
/// saves that are complete only `write` seconds after the stall: work / interval * exp(rate * (restart +
/// write)) * (exp(rate * (interval + stall)) - 1) / rate. Throws Error (usage) if the run would not end.
CampaignTimes campaign_times(const CampaignJob& job, const CampaignTerms& terms, double interval);
/// Interval with the least total time: exp(-rate * (interval + stall)) = 1 - rate * interval.
double best_interval(const CampaignTerms& terms);
/// Young's interval sqrt(2 stall / rate) (1974).
double young_interval(const CampaignTerms& terms);
/// Mean step time of the slowest of `ranks`, relative to the planned step time. `deviation`: standard
/// deviation of normally distributed step times.
double straggler_slowdown(int64_t ranks, double deviation);
/// Equally likely values of that distribution.
std::vector<double> straggler_quantiles(int64_t ranks, double deviation);
/// Share of hardware failures without a free spare (Erlang's loss formula), times the mean wait for a spare.
double mean_spare_wait(double hardware_rate, double repair, int64_t spares);

CampaignJob campaign_job(const Recipe& recipe, const MachineProfile& profile, const Plan& plan,
                         int ranks_per_node);
/// `watts`: power of a card from its profile; 0: unknown.
std::string campaign_text(const CampaignJob& job, const CampaignSettings& settings, double watts);
std::string campaign_json(const CampaignJob& job, const CampaignSettings& settings, double watts);

}  // namespace ltrain
