// Comparison of a plan with the available memory, and advice for a smaller one.
#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "kernels/tensor/device.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {
namespace {

const RankPlan& largest(const Plan& plan, int64_t RankPlan::*bytes) {
  return *std::max_element(plan.ranks.begin(), plan.ranks.end(),
                           [&](const RankPlan& a, const RankPlan& b) { return a.*bytes < b.*bytes; });
}

/// "a rank needs 61.2 GiB, a card has 74.5 GiB"; "2 ranks of 1.0 GiB need 2.0 GiB, this host has 23.4 GiB".
std::string limit_text(const MemoryLimit& limit) {
  const std::string need = limit.ranks == 1
                               ? fmt::format("a rank needs {}", bytes_text(limit.rank_bytes))
                               : fmt::format("{} ranks of {} need {}", limit.ranks,
                                             bytes_text(limit.rank_bytes), bytes_text(limit.needed_bytes()));
  return fmt::format("{}, {} has {}", need, limit.of == DeviceKind::cpu ? "this host" : "a card",
                     bytes_text(limit.available_bytes));
}

/// Possible changes, and the command that searches for more.
std::string help(const Plan& plan) {
  const std::string search =
      fmt::format("`ltrain plan RECIPE --search --gpus {}` finds the fastest layout that fits", plan.world);
  if (!plan.enough.empty())
    return fmt::format("enough by itself: {}; {}", fmt::join(plan.enough, ", or "), search);
  return fmt::format("what would help: {}; {}", fmt::join(plan.smaller, ", "), search);
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const Plan& plan) {
  std::vector<MemoryLimit> limits;
  if (plan.device != DeviceKind::cpu && plan.device_bytes > 0)
    limits.push_back({plan.device, 1, largest(plan, &RankPlan::total_bytes).total_bytes, plan.device_bytes});
  if (plan.for_this_machine && plan.host_bytes > 0)
    limits.push_back({DeviceKind::cpu, plan.ranks_on_host, largest(plan, &RankPlan::host_bytes).host_bytes,
                      plan.host_bytes});
  return limits;
}

bool fits(const Plan& plan) {
  const std::vector<MemoryLimit> limits = memory_limits(plan);
  return std::all_of(limits.begin(), limits.end(), [](const MemoryLimit& limit) { return limit.fits(); });
}

std::string impossible_text(const Plan& plan) {
  const double need = plan.state_bytes * static_cast<double>(plan.parameters),
               have = static_cast<double>(plan.device_bytes) * plan.world;
  if (plan.device == DeviceKind::cpu || plan.device_bytes <= 0 || need <= have) return "";
  const double flops = plan.model_flops() / static_cast<double>(plan.tokens_per_step);
  const bool one = plan.world == 1;
  const std::string cards = one ? "1 card" : fmt::format("{} cards", plan.world);
  return fmt::format(
      "{} parameters x {:.3g} bytes of weights, gradients and optimizer state = {}; {} of {} {} {}: at least "
      "{:.0f} are needed, before activations\n"
      "{} FLOPs a token: {} at {} peak of {:.1f} TFLOP/s {} at most {} tokens/s\n",
      format_count(static_cast<double>(plan.parameters)), plan.state_bytes,
      bytes_text(static_cast<int64_t>(need)), cards, bytes_text(plan.device_bytes), one ? "has" : "have",
      bytes_text(static_cast<int64_t>(have)), std::ceil(need / static_cast<double>(plan.device_bytes)),
      format_count(flops), cards, one ? "its" : "their", plan.peak_flops * 1e-12, one ? "trains" : "train",
      format_count(plan.peak_flops * plan.world / flops));
}

std::string fit_text(const Plan& plan) {
  const std::vector<MemoryLimit> limits = memory_limits(plan);
  if (limits.empty()) return "fits: not known, for this host does not say how much memory it has";
  const bool all = fits(plan);
  std::string text;
  for (const MemoryLimit& limit : limits)
    if (all || !limit.fits()) text += (text.empty() ? "" : "; ") + limit_text(limit);
  return all ? "fits: " + text : fmt::format("does not fit: {}; {}", text, help(plan));
}

std::string out_of_memory_text(const OutOfMemory& e, const Recipe& resolved, MachineProfile profile,
                               const RankPlan& rank, bool has_arena) {
  const std::string held = fmt::format("{}\n{}", e.what(), memory_text(rank));
  if (e.device_bytes() == 0) return held;
  const int64_t available =
      free_device_bytes(DeviceKind::cuda) + context_bytes(rank) + (has_arena ? rank.arena.arena_bytes : 0);
  const std::string there = fmt::format("{}the GPU has {} for this rank", held, bytes_text(available));
  profile.device_bytes = available;
  try {
    Plan plan = make_plan(resolved, profile, ranks_to_plan(resolved, profile));
    if (fits(plan))
      return there +
             ", which the plan needs less than: libraries or another process took the rest; a restart, or "
             "another GPU, would help";
    plan.enough = enough_settings(resolved, profile, plan);
    return fmt::format("{}; {}", there, help(plan));
  } catch (const Error& none) {  // no recompute policy fits
    return fmt::format("{}; {}", there, none.what());
  }
}

void check_memory(const Plan& plan) {
  for (const MemoryLimit& limit : memory_limits(plan)) {
    if (limit.fits()) continue;
    const bool host = limit.of == DeviceKind::cpu;
    fail(ExitCode::does_not_fit, "the plan exceeds {} memory: {}\n{}{}; --force goes on all the same",
         host ? "this host's" : "the GPU's", limit_text(limit),
         memory_text(largest(plan, host ? &RankPlan::host_bytes : &RankPlan::total_bytes)), help(plan));
  }
}

}  // namespace ltrain
