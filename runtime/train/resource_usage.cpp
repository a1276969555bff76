#include "runtime/train/resource_usage.h"

#include <cstdlib>
#include <fstream>

#include "base/bytes_text.h"
#include "base/json/json.h"
#include "runtime/checkpoint/files.h"
#include "runtime/files/write_file.h"
#include "runtime/telemetry/exposed.h"
#include "runtime/telemetry/gpu_numbers.h"

namespace ltrain {
namespace {

/// Peak resident memory of this process in bytes (VmHWM); 0 if /proc does not report it.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) * 1024;
  return 0;
}

/// Adds now - before to `sums`, per key.
void add_difference(std::map<std::string, int64_t>& sums, const std::map<std::string, int64_t>& now,
                    const std::map<std::string, int64_t>& before) {
  for (const auto& [key, value] : now) {
    const auto earlier = before.find(key);
    sums[key] += value - (earlier == before.end() ? 0 : earlier->second);
  }
}

}  // namespace

ResourceUsage::Bytes ResourceUsage::sent(const Groups& groups, bool by_group) {
  Bytes sums;
  for (const Communicator* c : groups.all()) {
    if (c->size() == 1) continue;
    const AxisSet longer = long_axes(c->axes(), [&](Axis a) { return groups.size(a); });
    sums[by_group ? comm_axis(c->axes()) : std::string(axis_set_name(longer))] += c->wire_bytes();
  }
  return sums;
}

void check_used_bytes(const RankPlan& plan, const Arena& arena, const Arena* host,
                      const OffloadedBytes& offloaded) {
  LT_CHECK(arena.peak().arena_bytes <= plan.arena.arena_bytes,
           "expected a step to use at most {} planned bytes, got {}", plan.arena.arena_bytes,
           arena.peak().arena_bytes);
  LT_CHECK(!host || host->peak().arena_bytes == plan.staging_bytes,
           "expected {} planned bytes of staging memory, got {}", plan.staging_bytes,
           host->peak().arena_bytes);
  LT_CHECK(offloaded.all() <= plan.offloaded.all(), "expected at most {} planned bytes of offload, got {}",
           plan.offloaded.all(), offloaded.all());
}

void ResourceUsage::reached(std::string_view part, DeviceKind device) {
  device_ = device;
  const int64_t used =
      device == DeviceKind::cpu ? 0 : device_info(device).total_bytes - free_device_bytes(device);
  start_.push_back({.part = std::string(part), .until = seconds(), .device_bytes = used});
}

void ResourceUsage::begin_step(const Groups& groups) {
  axis_at_begin_ = sent(groups, false);
  group_at_begin_ = sent(groups, true);
}

void ResourceUsage::end_step(const Groups& groups, int64_t planned_bytes) {
  planned_ += planned_bytes;
  add_difference(by_axis_, sent(groups, false), axis_at_begin_);
  add_difference(by_group_, sent(groups, true), group_at_begin_);
  if (steps_ < 2) reached(steps_ == 0 ? "first step" : "second step", device_);
  ++steps_;
}

void ResourceUsage::note_gpu(const GpuReading& run, int64_t readings, double reading_seconds) {
  gpu_ = run, gpu_readings_ = readings, gpu_reading_seconds_ = reading_seconds;
}

int64_t ResourceUsage::sent_in_steps() const {
  int64_t sum = 0;
  for (const auto& [axis, bytes] : by_axis_) sum += bytes;
  return sum;
}

void ResourceUsage::write(const std::string& output_dir, int rank, int64_t steps, const Groups& groups,
                          const Arena& arena, const DeviceInfo& card, DeviceKind device,
                          const RankPlan& plan) const {
  nlohmann::ordered_json usage{{"rank", rank},
                               {"steps", steps},
                               {"arena_bytes", arena.peak().arena_bytes},
                               {"train_wire_bytes", sent_in_steps()},
                               {"train_wire_bytes_by_axis", by_axis_},
                               {"train_wire_bytes_by_group", by_group_},
                               {"all_wire_bytes", groups.wire_bytes()},
                               {"device_bytes", card.total_bytes - free_device_bytes(device)},
                               {"peak_rss_bytes", peak_resident_bytes()},
                               {"plan_arena_bytes", plan.arena.arena_bytes},
                               {"plan_total_bytes", plan.total_bytes},
                               {"plan_host_bytes", plan.host_bytes}};
  for (const GpuNumber& n : gpu_numbers())
    if (gpu_.*n.member) usage["gpu"][n.name] = *(gpu_.*n.member);
  if (gpu_readings_ > 0) {
    usage["gpu"]["readings"] = gpu_readings_;
    usage["gpu"]["reading_seconds"] = gpu_reading_seconds_;
  }
  for (const StartPart& p : start_) {
    usage["start"].push_back({{"part", p.part}, {"until_seconds", p.until}});
    if (p.device_bytes > 0) usage["start"].back()["device_bytes"] = p.device_bytes;
  }
  make_folders(output_dir + "/logs");
  replace_file(fmt::format("{}/logs/usage-{:05d}.json", output_dir, rank), usage.dump() + "\n");
}

std::string ResourceUsage::text(int64_t steps, const RankPlan& plan, bool routes,
                                const std::string& transports) const {
  return fmt::format(
      "rank 0 used {:.1f} MiB of the host's memory at its peak ({:.1f} planned) and sent {:.1f} MiB in {} "
      "training step{} ({:.1f} planned){}{}",
      peak_resident_bytes() / kMiB, plan.host_bytes / kMiB, sent_in_steps() / kMiB, steps,
      steps == 1 ? "" : "s", planned_ / kMiB, routes ? between_experts(steps, plan) : "",
      transports.empty() ? "" : " through " + transports);
}

std::string ResourceUsage::between_experts(int64_t steps, const RankPlan& plan) const {
  const auto sent = by_group_.find("ep");
  if (sent == by_group_.end()) return "";
  int64_t planned = 0;
  for (const CollectivePlan& c : plan.collectives) planned += c.group == "ep" ? c.wire_bytes : 0;
  // Plans of collectives are those of a usual step (StepKinds).
  const bool all_usual = planned_ == steps * plan.train_wire_bytes;
  return fmt::format(
      ", {:.1f} of it between experts{}", sent->second / kMiB,
      all_usual ? fmt::format(" ({:.1f} planned, for even routing)", steps * planned / kMiB) : "");
}

}  // namespace ltrain
