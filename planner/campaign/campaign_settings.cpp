#include "planner/campaign/campaign_settings.h"

#include "base/error.h"
#include "base/printable.h"
#include "runtime/machines/checked_yaml.h"
#include "runtime/machines/profile_file.h"
#include "runtime/recipe/read_file.h"

namespace ltrain {
namespace {

const char* const kLlama3 =
    "arXiv:2407.21783 table 5: 419 unexpected interruptions of 16,384 H100 in 54 days";

/// Mean hours between failures, from `stops` in those 54 days with `parts` running parts.
Figure llama3(double stops, double parts, const char* which) {
  return {54 * 24 * parts / stops, FigureSource::published, fmt::format("{}, {}", kLlama3, which), true};
}
Figure assumed(double value, const char* why) { return {value, FigureSource::assumed, why, true}; }

std::vector<CampaignKey> make_keys() {
  using S = CampaignSettings;
  const double gpus = 16384, nodes = gpus / 8;
  return {
      {"gpu_hours", &S::gpu_hours, 1, 1e9, "hours",
       llama3(268, gpus,
              "268 of GPUs: faulty 148, HBM3 72, SRAM 19, system processor 17, silent corruption 6, "
              "thermal 6")},
      {"node_hours", &S::node_hours, 1, 1e9, "hours",
       llama3(53, nodes,
              "53 of hosts: maintenance 32, network card 7, SSD 3, power 3, chassis 2, IO board 2, CPU 2, "
              "memory 2")},
      {"network_hours", &S::network_hours, 1, 1e9, "hours",
       llama3(42, nodes, "42 of networks: switch or cable 35, NCCL watchdog 7")},
      {"software_hours", &S::software_hours, 1, 1e9, "hours",
       llama3(56, nodes, "56 of software: bugs 54, dependencies 2")},
      {"detection_seconds", &S::detection_seconds, 0, 86400, "seconds",
       assumed(15, "every rank is gone within 15 s")},
      {"restart_seconds", &S::restart_seconds, 0, 86400, "seconds",
       assumed(600, "scheduling, processes, groups and first step")},
      {"storage_bytes_per_second", &S::storage_bytes_per_second, 1e6, 1e15, "bytes/s",
       assumed(100e9, "of a site")},
      {"copy_bytes_per_second", &S::copy_bytes_per_second, 1e6, 1e13, "bytes/s",
       assumed(20e9, "over PCIe, of a rank")},
      {"save_stall_seconds", &S::save_stall_seconds, 0, 86400, "seconds",
       assumed(1, "ranks wait for each other, beside the copy or the write")},
      {"spare_nodes", &S::spare_nodes, 0, 1e6, "nodes", {}},
      {"repair_hours", &S::repair_hours, 0.01, 10000, "hours", assumed(24, "until a node is back")},
      {"straggler_deviation", &S::straggler_deviation, 0, 1, "of a step",
       assumed(0, "all ranks are equally fast")},
      {"maintenance_interval_hours", &S::maintenance_interval_hours, 0, 1e6, "hours", assumed(0, "none")},
      {"maintenance_seconds", &S::maintenance_seconds, 0, 1e7, "seconds", assumed(0, "none")},
      {"watts_per_gpu", &S::watts_per_gpu, 1, 1e5, "watts", {}},
      {"power_usage_effectiveness", &S::power_usage_effectiveness, 1, 5, "",
       assumed(1, "of the cards alone")},
      {"gpu_hour_price", &S::gpu_hour_price, 0, 1e6, "a GPU hour", {}},
      {"kilowatt_hour_price", &S::kilowatt_hour_price, 0, 1e6, "a kWh", {}},
  };
}

}  // namespace

const std::vector<CampaignKey>& campaign_keys() {
  static const std::vector<CampaignKey> keys = make_keys();
  return keys;
}

CampaignSettings default_campaign_settings() {
  CampaignSettings s;
  for (const CampaignKey& key : campaign_keys()) s.*key.member = key.standard;
  return s;
}

CampaignSettings parse_campaign(const std::string& text, const std::string& name) {
  const recipe::Node root = recipe::parse_yaml(text, name);
  CheckedFile file;
  CheckedMap m(file, root, "");
  CampaignSettings s = default_campaign_settings();
  if (root.kind == recipe::Node::map) {
    m.choice("format", {kCampaignFormat});
    read_references(file, m);
    for (const CampaignKey& key : campaign_keys()) {
      const Figure f = m.figure(key.name, key.least, key.most, false);
      if (f.given) s.*key.member = f;
    }
    m.finish();
  }
  file.problems.raise_if_any(name);
  return s;
}

CampaignSettings load_campaign(const std::string& path) {
  std::string text;
  const std::string problem = recipe::read_small_file(path, text);
  if (!problem.empty()) fail(ExitCode::usage, "{}: {}", printable(path), problem);
  return parse_campaign(text, path);
}

}  // namespace ltrain
