// Event-by-event simulation of the run in campaign.h.
#pragma once
#include "planner/campaign/campaign.h"

namespace ltrain {

struct SimulatedCampaign {
  double seconds = 0;   ///< mean over the runs
  double error = 0;     ///< standard error of the mean
  double failures = 0;  ///< mean over the runs
  int runs = 0;
};

/// Simulates 8 to 4,000 runs, until they have 5,000 failures in total and the standard error is below 0.2 %.
SimulatedCampaign simulate_campaign(const CampaignJob& job, const CampaignTerms& terms,
                                    const CampaignSettings& settings, double interval, uint64_t seed = 1);

}  // namespace ltrain
