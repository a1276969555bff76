// Offload in a plan: offloaded tensors, their targets, and the memory and time for them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {
namespace {

constexpr std::string_view kStatesKey = "offload.optimizer";  // name of the stream of states

}  // namespace

void add_offloaded(RankPlan& plan, const Recipe& recipe) {
  const bool cuda = device_of(recipe) == DeviceKind::cuda;
  const OffloadFolders folders = offload_folders(recipe);
  int64_t files = 0, touched = 0;
  for (const auto& [what, bytes, folder] :
       {std::tuple("optimizer states", plan.offloaded.optimizer, &folders.states),
        std::tuple("weights", plan.offloaded.params, &folders.params),
        std::tuple("activations", plan.offloaded.activations, &folders.activations)}) {
    if (bytes == 0) continue;
    if (folder->empty()) {
      plan.outside.push_back({fmt::format("offloaded {}", what), bytes, "exact: pinned"});
      continue;
    }
    ++files;
    if (folder != &folders.activations) touched += std::min(bytes, kOffloadTouch);
  }
  if (files == 0) return;
  plan.outside.push_back({"buffers of files", files * kFileBuffers, "exact"});
  if (cuda) plan.outside.push_back({"pinned buffers of files", files * kPinnedFileBuffers, "exact"});
  if (touched > 0) plan.outside.push_back({"pages of files", touched, "formula"});
}

void add_states_moved(RankPlan& plan, const TraceEntry& e) {
  if (e.name == kHostUpdate) plan.host_update_seconds += e.seconds;
  if (e.cls != OpClass::offload || e.stream != kStatesKey) return;
  (e.name == kOffloadStore || e.name == kFileStore ? plan.states_out_bytes : plan.states_in_bytes) += e.bytes;
}

UpdateChoice price_updates(const Recipe& r, const MachineProfile& profile, PipelineLayout layout) {
  UpdateChoice choice{.automatic = r.offload.update == OffloadUpdate::automatic};
  const auto seconds = [&](bool host) {
    layout.update = UpdateChoice{.host = host};
    return compose_rank(r, profile, layout, 0, threads_per_rank(r)).step_seconds;
  };
  choice.device_seconds = seconds(false);
  choice.host_seconds = seconds(true);
  choice.host =
      choice.automatic ? choice.host_seconds < choice.device_seconds : r.offload.update == OffloadUpdate::cpu;
  return choice;
}

std::optional<UpdateChoice> planned_update(const Recipe& r, const MachineProfile& profile,
                                           const PipelineLayout& layout) {
  if (layout.update) return layout.update;
  if (device_of(r) != DeviceKind::cuda || r.offload.optimizer.device != OffloadDevice::cpu ||
      r.offload.params.on() || r.train.ema_decay > 0)
    return std::nullopt;
  return price_updates(r, profile, layout);
}

std::string update_text(const UpdateChoice& c) {
  const double less = c.device_seconds - c.host_seconds;
  const char *chosen = c.host ? "cpu" : "device", *other = c.host ? "device" : "cpu";
  const double gain = c.host ? less : -less;
  return fmt::format("offload.optimizer.update: {}{}: {:.1f} ms a step {} than {}, by the plan",
                     c.automatic ? "auto chose " : "", chosen, std::abs(gain) * 1e3,
                     gain >= 0 ? "less" : "more", other);
}

std::vector<std::pair<std::string, int64_t>> offloaded_text(const OffloadedBytes& b) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (b.optimizer > 0) out.emplace_back("optimizer states", b.optimizer);
  if (b.params > 0) out.emplace_back("weights", b.params);
  if (b.activations > 0) out.emplace_back("activations", b.activations);
  return out;
}

}  // namespace ltrain
