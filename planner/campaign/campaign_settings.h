// Settings that price a campaign (all steps of a run, over weeks): failures, restarts, storage, maintenance,
// prices.
#pragma once
#include <string>
#include <vector>

#include "runtime/machines/figures.h"

namespace ltrain {

inline constexpr const char* kCampaignFormat = "ltrain.campaign.v1";

struct CampaignSettings {
  // Mean hours between failures of one part. For network and software: of one node's share.
  Figure gpu_hours, node_hours, network_hours, software_hours;
  Figure detection_seconds,
      restart_seconds;              ///< time to detect a failure; time to the first step, without loading
  Figure storage_bytes_per_second;  ///< total of all ranks, for writing and reading
  /// Copy rate of a rank to host memory, for which an asynchronous save stops.
  Figure copy_bytes_per_second;
  Figure save_stall_seconds;  ///< additional stall of every save
  Figure spare_nodes;         ///< not given: enough to keep waiting below 1 % of the time
  Figure repair_hours;        ///< time until a failed node can be used again
  /// Standard deviation of the ranks' step times, relative to the planned one.
  Figure straggler_deviation;
  Figure maintenance_interval_hours,
      maintenance_seconds;  ///< planned stops, in addition to save and restart; 0 hours: none
  Figure watts_per_gpu, power_usage_effectiveness;
  Figure gpu_hour_price, kilowatt_hour_price;
};

/// One key of the file: its range, unit and default.
struct CampaignKey {
  const char* name;
  Figure CampaignSettings::*member;
  double least, most;
  const char* unit;
  Figure standard;  ///< `given` false: no default
};
const std::vector<CampaignKey>& campaign_keys();

CampaignSettings default_campaign_settings();
/// Reads a YAML file with some of the keys; the others keep their defaults. Throws Error (usage) with every
/// problem and its line.
CampaignSettings parse_campaign(const std::string& text, const std::string& name);
CampaignSettings load_campaign(const std::string& path);

}  // namespace ltrain
