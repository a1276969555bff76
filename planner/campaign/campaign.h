// Time and cost of a run to its end, with failures: by formula here, by events in campaign_simulation.h.
#pragma once
#include <cstdint>
#include <string>

#include "planner/campaign/campaign_settings.h"
#include "runtime/plan/plan.h"

namespace ltrain {

struct CampaignJob {
  int64_t gpus = 1, gpus_per_node = 8;
  double work_seconds = 0;  ///< of all steps and evaluations, without a failure
  double step_seconds = 1;
  double checkpoint_bytes = 0;
  bool async_save = true;     ///< training goes on while files are written
  int64_t save_interval = 0;  ///< steps; 0: the best
  int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

/// What the job and the settings come to, in seconds and failures a second.
struct CampaignTerms {
  double failure_rate = 0, hardware_rate = 0;  ///< of the whole job; hardware: a node is replaced
  double restart = 0;                          ///< detection, restart and load
  double stall = 0, write = 0;                 ///< a save stops training so long; is whole so long after that
  double maintenance_interval = 0, maintenance = 0;  ///< with save and restart; 0: none
  double repair = 0;
  int64_t spares = 0;
  double slowdown = 1;  ///< of a step, by the slowest rank
};
CampaignTerms campaign_terms(const CampaignJob& job, const CampaignSettings& settings);

/// Where the time goes, in seconds; `failures` in all.
struct CampaignTimes {
  double total = 0, work = 0, stragglers = 0, saves = 0, restarts = 0, lost = 0, spare_waits = 0,
         maintenance = 0;
  double failures = 0;
  double effective() const { return total > 0 ? (work + stragglers) / total : 0; }
};

/// Of saves every `interval` seconds of work at the planned speed. Failures come by a Poisson process, in
/// restarts too. After Daly (2006, doi:10.1016/j.future.2004.11.016, equation 20), with saves that are whole
/// only `write` seconds after the stall: work / interval * exp(rate * (restart + write)) * (exp(rate *
/// (interval + stall)) - 1) / rate. Throws Error (usage) where the run would not end.
CampaignTimes campaign_times(const CampaignJob& job, const CampaignTerms& terms, double interval);
/// The interval of least total time: exp(-rate * (interval + stall)) = 1 - rate * interval.
double best_interval(const CampaignTerms& terms);
/// sqrt(2 stall / rate) (Young, 1974).
double young_interval(const CampaignTerms& terms);
/// Mean of what the slowest of `ranks` has beside 1, by standard deviation of normal step times.
double straggler_slowdown(int64_t ranks, double deviation);
/// Its distribution: values that are equally likely.
std::vector<double> straggler_quantiles(int64_t ranks, double deviation);
/// Share of hardware failures that find no spare (Erlang's loss formula), times the mean wait until one is
/// back.
double mean_spare_wait(double hardware_rate, double repair, int64_t spares);

CampaignJob campaign_job(const Recipe& recipe, const MachineProfile& profile, const Plan& plan,
                         int ranks_per_node);
/// `watts`: of a card by its profile; 0: unknown.
std::string campaign_text(const CampaignJob& job, const CampaignSettings& settings, double watts);
std::string campaign_json(const CampaignJob& job, const CampaignSettings& settings, double watts);

}  // namespace ltrain
