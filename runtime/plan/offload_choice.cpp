#include "runtime/plan/offload_choice.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/bytes_text.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"

namespace ltrain {
namespace {

/// Devices that a section may have; cheapest first.
std::vector<OffloadDevice> ways(const Recipe& r, const OffloadPlace& place, bool may_stay) {
  if (place.device != OffloadDevice::automatic) return {place.device};
  std::vector<OffloadDevice> out;
  if (may_stay) out.push_back(OffloadDevice::none);
  if (device_of(r) == DeviceKind::cuda) out.push_back(OffloadDevice::cpu);
  if (place.path) out.push_back(OffloadDevice::nvme);
  return out;
}

/// Number of sections that leave.
int leaves(const OffloadDevices& d) {
  return int{d.optimizer != OffloadDevice::none} + int{d.params != OffloadDevice::none} +
         int{d.activations != OffloadDevice::none};
}

/// All placements; those with fewer sections away first.
std::vector<OffloadDevices> placements(const Recipe& r) {
  const Offload& o = r.offload;
  const auto& tensors = r.recompute.tensors;
  const bool named = std::any_of(tensors.begin(), tensors.end(),
                                 [](const auto& t) { return t.second == SavePolicy::offload; });
  std::vector<OffloadDevices> out;
  for (const OffloadDevice states : ways(r, o.optimizer, true))
    for (const OffloadDevice params : ways(r, o.params, true))
      for (const OffloadDevice activations : ways(r, o.activations, !named))
        out.push_back({states, params, activations});
  std::stable_sort(out.begin(), out.end(),
                   [](const OffloadDevices& a, const OffloadDevices& b) { return leaves(a) < leaves(b); });
  return out;
}

/// "optimizer: cpu, params: none": the sections that the recipe leaves to the plan.
std::string text_of(const Recipe& r, const OffloadDevices& d) {
  std::string text;
  const auto add = [&](const char* section, const OffloadPlace& place, OffloadDevice device) {
    if (place.device == OffloadDevice::automatic)
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", section, to_string(device));
  };
  add("optimizer", r.offload.optimizer, d.optimizer);
  add("params", r.offload.params, d.params);
  add("activations", r.offload.activations, d.activations);
  return text;
}

struct Tried {
  OffloadDevices devices;
  double seconds = 0;
  int64_t bytes = 0;  ///< need of the largest rank
  bool fits = false;
};

std::optional<Tried> tried(Recipe r, const MachineProfile& profile, const OffloadDevices& devices) {
  set_offload(r, devices);
  try {
    const Plan plan = make_plan(r, profile, ranks_to_plan(r, profile));
    Tried t{.devices = devices, .seconds = plan.step_seconds(), .bytes = 0, .fits = fits(plan)};
    for (const MemoryLimit& limit : memory_limits(plan)) t.bytes = std::max(t.bytes, limit.rank_bytes);
    return t;
  } catch (const Error& e) {
    if (e.code() != ExitCode::does_not_fit) throw;
    return std::nullopt;  // recompute.granularity: auto fits with none of its ways
  }
}

}  // namespace

bool chooses_offload(const Recipe& r) {
  const Offload& o = r.offload;
  return o.optimizer.device == OffloadDevice::automatic || o.params.device == OffloadDevice::automatic ||
         o.activations.device == OffloadDevice::automatic;
}

void set_offload(Recipe& r, const OffloadDevices& d) {
  r.offload.optimizer.device = d.optimizer;
  r.offload.params.device = d.params;
  r.offload.activations.device = d.activations;
  if (d.optimizer != OffloadDevice::cpu) r.offload.update = OffloadUpdate::device;
  for (OffloadPlace* place : {&r.offload.optimizer, &r.offload.params, &r.offload.activations})
    if (!place->on()) place->fraction = 1;
}

OffloadChoice choose_offload(const Recipe& r, const MachineProfile& profile) {
  const std::vector<OffloadDevices> all = placements(r);
  std::optional<Tried> best, least;
  int fitting = 0;
  std::string others;
  const auto leave = [&](const Tried& t) {
    others += fmt::format(
        "; {}: a rank needs {}{}", text_of(r, t.devices), bytes_text(t.bytes),
        t.fits ? fmt::format(", a step takes {:.1f} ms", t.seconds * 1e3) : ", which does not fit");
  };
  for (const OffloadDevices& devices : all) {
    const std::optional<Tried> t = tried(r, profile, devices);
    if (!t) continue;
    if (!least || t->bytes < least->bytes) least = t;
    fitting += t->fits;
    if (t->fits && (!best || t->seconds < best->seconds)) {
      if (best) leave(*best);
      best = t;
    } else {
      leave(*t);
    }
    // Nothing is faster than a step without transfers.
    if (leaves(devices) == 0 && t->fits) break;
  }
  if (!best && !least)
    return {all.back(), fmt::format("offload: auto: none of {} placements fits", all.size())};
  const Tried& chosen = best ? *best : *least;
  const std::string needs = fmt::format("a rank needs {}, a step takes {:.1f} ms by the plan",
                                        bytes_text(chosen.bytes), chosen.seconds * 1e3);
  const bool stays = leaves(chosen.devices) == 0;
  const std::string why =
      !best             ? fmt::format("the least memory of {} placements, none of which fits", all.size())
      : fitting > 1     ? fmt::format("the fastest of {} that fit", fitting)
      : !others.empty() ? "the only one that fits"
      : stays           ? "which fits without transfers"
                        : "the only one that the recipe allows";
  return {chosen.devices,
          fmt::format("offload: auto chose {} ({}), {}{}", text_of(r, chosen.devices), needs, why, others)};
}

std::optional<OffloadChoice> take_offload_choice(Recipe& resolved, const MachineProfile& profile) {
  if (!chooses_offload(resolved)) return {};
  OffloadChoice choice = choose_offload(resolved, profile);
  set_offload(resolved, choice.devices);
  resolved.notes.push_back(choice.text);
  return choice;
}

PipelineLayout choose_layout(Recipe& resolved, const MachineProfile& profile) {
  const auto choice = take_offload_choice(resolved, profile);
  PipelineLayout layout = pipeline_layout(resolved, profile);
  if (choice) layout.offload = choice->devices;
  return layout;
}

}  // namespace ltrain
