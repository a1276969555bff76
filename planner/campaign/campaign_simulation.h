// The same run as campaign.h's, event by event.
#pragma once
#include "planner/campaign/campaign.h"

namespace ltrain {

struct SimulatedCampaign {
  double seconds = 0;   ///< mean of the runs
  double error = 0;     ///< standard error of it
  double failures = 0;  ///< mean
  int runs = 0;
};

/// So many runs that they have 5,000 failures together and the standard error is below 0.2 %: 8 to 4,000 of
/// them.
SimulatedCampaign simulate_campaign(const CampaignJob& job, const CampaignTerms& terms,
                                    const CampaignSettings& settings, double interval, uint64_t seed = 1);

}  // namespace ltrain
