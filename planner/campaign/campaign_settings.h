// What a campaign (all steps of a run, over weeks) is priced by: failures, restarts, storage, maintenance,
// prices.
#pragma once
#include <string>
#include <vector>

#include "runtime/machines/figures.h"

namespace ltrain {

inline constexpr const char* kCampaignFormat = "ltrain.campaign.v1";

struct CampaignSettings {
  // Mean hours between failures of one part; the network's and the software's are of one node's share.
  Figure gpu_hours, node_hours, network_hours, software_hours;
  Figure detection_seconds,
      restart_seconds;              ///< until a failure is known; until the first step, without the load
  Figure storage_bytes_per_second;  ///< of all ranks together, writing and reading
  Figure copy_bytes_per_second;     ///< of a rank, to host memory: what an asynchronous save stops for
  Figure save_stall_seconds;        ///< that every save stops training for beside that
  Figure spare_nodes;               ///< not given: as many as keep waiting below 1 % of the time
  Figure repair_hours;              ///< until a node that failed can be used again
  Figure straggler_deviation;       ///< standard deviation of ranks' step times, of the planned one
  Figure maintenance_interval_hours,
      maintenance_seconds;  ///< planned stops, beside save and restart; 0 hours: none
  Figure watts_per_gpu, power_usage_effectiveness;
  Figure gpu_hour_price, kilowatt_hour_price;
};

/// One key of the file: its range, unit and default.
struct CampaignKey {
  const char* name;
  Figure CampaignSettings::*member;
  double least, most;
  const char* unit;
  Figure standard;  ///< `given` false: without a value
};
const std::vector<CampaignKey>& campaign_keys();

CampaignSettings default_campaign_settings();
/// A YAML file of some of the keys over the defaults. Throws Error (usage) with every problem and its line.
CampaignSettings parse_campaign(const std::string& text, const std::string& name);
CampaignSettings load_campaign(const std::string& path);

}  // namespace ltrain
