// Whether a plan fits into the memory that is there, and what would make it smaller.
#include <algorithm>
#include <cmath>

#include "kernels/base/bytes_text.h"
#include "runtime/plan/plan.h"
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

std::string help(const Plan& plan) {
  return fmt::format("what would help: {}", fmt::join(plan.smaller, ", "));
}

}  // namespace

std::vector<std::string> smaller_settings(const Recipe& r) {
  std::vector<std::string> out;
  if (r.train.micro_batch_size > 1)
    out.push_back(fmt::format("a smaller train.micro_batch_size (now {})", r.train.micro_batch_size));
  const bool experts = r.model.moe.num_experts > 0;
  const bool rows_travel = r.parallel.expert > 1 && r.parallel.expert_dispatch != ExpertDispatch::all_gather;
  if (experts && rows_travel && !r.model.moe.row_budget)
    out.emplace_back("model.moe.row_budget: 1.5 (now all rows that can come)");
  if (experts && r.parallel.expert > 1 && !rows_travel)
    out.emplace_back("parallel.expert_dispatch: all_to_all, with model.moe.row_budget: 1.5");
  if (experts && r.recompute.granularity == RecomputeGranularity::none)
    out.emplace_back("recompute.granularity: selective, with recompute.modules: [layernorm, moe]");
  else if (r.recompute.granularity == RecomputeGranularity::none ||
           r.recompute.granularity == RecomputeGranularity::selective)
    out.emplace_back("recompute.granularity: full");
  if (r.parallel.data > 1 && r.parallel.zero_stage < 3)
    out.push_back(fmt::format("a higher parallel.zero_stage (now {})", r.parallel.zero_stage));
  if (r.parallel.sharding().keeps_gathered()) out.emplace_back("parallel.reshard_after_forward: true");
  out.push_back(fmt::format("more ranks (parallel.tensor, now {}, or parallel.pipeline, now {})",
                            r.parallel.tensor, r.parallel.pipeline));
  if (!r.offload.optimizer.on())
    out.push_back(
        fmt::format("offload.optimizer.device: {}", device_of(r) == DeviceKind::cuda ? "cpu" : "nvme"));
  if (r.train.logits_chunk_size == 0 && device_of(r) == DeviceKind::cuda)
    out.emplace_back("train.logits_chunk_size: 1024 (now 4096)");
  if (r.precision == Precision::fp32 || r.precision == Precision::fp64) out.emplace_back("precision: bf16");
  if (r.launch.ranks_on_host > 1 && device_of(r) == DeviceKind::cpu) out.emplace_back("fewer ranks a host");
  out.emplace_back("a smaller data.seq_length or model");
  return out;
}

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
  return fmt::format(
      "{} parameters x {:.3g} bytes of weights, gradients and optimizer state = {}; {} cards of {} have {}: "
      "at "
      "least {:.0f} are needed, before activations\n"
      "{} FLOPs a token: {} cards at their peak of {:.1f} TFLOP/s train at most {} tokens/s\n",
      format_count(static_cast<double>(plan.parameters)), plan.state_bytes,
      bytes_text(static_cast<int64_t>(need)), plan.world, bytes_text(plan.device_bytes),
      bytes_text(static_cast<int64_t>(have)), std::ceil(need / static_cast<double>(plan.device_bytes)),
      format_count(flops), plan.world, plan.peak_flops * 1e-12,
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
