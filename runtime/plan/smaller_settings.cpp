// Settings that make a plan smaller, as text, and those that are sufficient on their own.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/bytes_text.h"
#include "base/error.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {
namespace {

/// A setting, and its application to a recipe.
struct Change {
  std::string settings;  ///< "parallel.zero_stage: 2"
  std::function<void(Recipe&)> apply;
};

/// One way to need less memory.
struct Smaller {
  std::string text;             ///< description: "a higher parallel.zero_stage (now 0)"
  std::vector<Change> changes;  ///< smallest change first; empty: it does not depend on the recipe alone
};

/// Adds fewer rows of experts, and recomputation.
void add_expert_and_recompute_ways(const Recipe& r, std::vector<Smaller>& out) {
  const auto add = [&](std::string text, std::vector<Change> changes) {
    out.push_back({std::move(text), std::move(changes)});
  };
  const bool experts = r.model.moe.num_experts > 0;
  const bool rows_travel = r.parallel.expert > 1 && r.parallel.expert_dispatch != ExpertDispatch::all_gather;
  if (experts && rows_travel && !r.model.moe.row_budget)
    add("model.moe.row_budget: 1.5 (now all rows that can come)",
        {{"model.moe.row_budget: 1.5", [](Recipe& c) { c.model.moe.row_budget = 1.5; }}});
  if (experts && r.parallel.expert > 1 && !rows_travel)
    add("parallel.expert_dispatch: all_to_all, with model.moe.row_budget: 1.5",
        {{"parallel.expert_dispatch: all_to_all, with model.moe.row_budget: 1.5", [](Recipe& c) {
            c.parallel.expert_dispatch = ExpertDispatch::all_to_all;
            c.model.moe.row_budget = 1.5;
          }}});
  if (experts && r.recompute.granularity == RecomputeGranularity::none)
    add("recompute.granularity: selective, with recompute.modules: [layernorm, moe]",
        {{"recompute.granularity: selective, with recompute.modules: [layernorm, moe]", [](Recipe& c) {
            c.recompute.granularity = RecomputeGranularity::selective;
            c.recompute.modules = {RecomputeModule::layernorm, RecomputeModule::moe};
          }}});
  else if (r.recompute.granularity == RecomputeGranularity::none ||
           r.recompute.granularity == RecomputeGranularity::selective)
    add("recompute.granularity: full", {{"recompute.granularity: full", [](Recipe& c) {
                                           c.recompute.granularity = RecomputeGranularity::full;
                                           c.recompute.modules.clear();
                                           c.recompute.tensors.clear();
                                         }}});
}

/// All ways, in the order of the output.
std::vector<Smaller> ways(const Recipe& r) {
  std::vector<Smaller> out;
  const auto add = [&](std::string text, std::vector<Change> changes = {}) {
    out.push_back({std::move(text), std::move(changes)});
  };
  if (const int64_t now = r.train.micro_batch_size; now > 1) {
    std::vector<Change> less;
    for (int64_t n = now / 2; n >= 1; n /= 2)
      less.push_back(
          {fmt::format("train.micro_batch_size: {}", n), [n](Recipe& c) { c.train.micro_batch_size = n; }});
    add(fmt::format("a smaller train.micro_batch_size (now {})", now), less);
  }
  add_expert_and_recompute_ways(r, out);
  if (r.parallel.data > 1 && r.parallel.zero_stage < 3) {
    std::vector<Change> higher;
    for (int64_t stage = r.parallel.zero_stage + 1; stage <= 3; ++stage)
      higher.push_back({fmt::format("parallel.zero_stage: {}", stage),
                        [stage](Recipe& c) { c.parallel.zero_stage = stage; }});
    add(fmt::format("a higher parallel.zero_stage (now {})", r.parallel.zero_stage), higher);
  }
  if (r.parallel.sharding().keeps_gathered())
    add("parallel.reshard_after_forward: true", {{"parallel.reshard_after_forward: true", [](Recipe& c) {
                                                    c.parallel.reshard_after_forward = true;
                                                  }}});
  if (const int64_t now = r.parallel.zero_layers; now > 0) {
    std::vector<Change> fewer;
    for (int64_t n = now / 2; n > 0; n /= 2)
      fewer.push_back(
          {fmt::format("parallel.zero_layers: {}", n), [n](Recipe& c) { c.parallel.zero_layers = n; }});
    fewer.push_back({"parallel.zero_layers: 0", [](Recipe& c) { c.parallel.zero_layers = 0; }});
    add(fmt::format("fewer parallel.zero_layers (now {})", now), fewer);
  }
  add(fmt::format("more ranks (parallel.tensor, now {}, or parallel.pipeline, now {})", r.parallel.tensor,
                  r.parallel.pipeline));
  if (!r.offload.optimizer.on()) {
    const bool cuda = device_of(r) == DeviceKind::cuda;
    std::vector<Change> to_host;
    if (cuda)
      to_host.push_back({"offload.optimizer.device: cpu",
                         [](Recipe& c) { c.offload.optimizer.device = OffloadDevice::cpu; }});
    add(fmt::format("offload.optimizer.device: {}", cuda ? "cpu" : "nvme"), to_host);
  }
  if (r.train.logits_chunk_size == 0 && device_of(r) == DeviceKind::cuda)
    add("train.logits_chunk_size: 1024 (now 4096)",
        {{"train.logits_chunk_size: 1024", [](Recipe& c) { c.train.logits_chunk_size = 1024; }}});
  if (r.precision == Precision::fp32 || r.precision == Precision::fp64)
    add("precision: bf16", {{"precision: bf16", [](Recipe& c) { c.precision = Precision::bf16; }}});
  if (r.launch.ranks_on_host > 1 && device_of(r) == DeviceKind::cpu) add("fewer ranks a host");
  add("a smaller data.seq_length or model");
  return out;
}

/// Returns whether the rules allow the changed recipe.
bool allowed(const Recipe& r) {
  recipe::Diagnostics problems;
  std::vector<std::string> notes;
  const int64_t world = ranks(r);
  recipe::check_rules(r, *r.origins, problems, notes);
  if (problems.empty()) recipe::check_layout(r, *r.origins, world, r.launch.ranks_on_host, problems);
  if (problems.empty()) recipe::check_device_rules(r, *r.origins, problems);
  return problems.empty();
}

}  // namespace

std::vector<std::string> smaller_settings(const Recipe& r) {
  std::vector<std::string> out;
  for (Smaller& way : ways(r)) out.push_back(std::move(way.text));
  return out;
}

std::vector<std::string> enough_settings(const Recipe& r, const MachineProfile& profile, const Plan& plan) {
  std::vector<std::pair<double, std::string>> found;  // seconds of a step, text
  if (!r.origins) return {};
  for (const Smaller& way : ways(r))
    for (const Change& change : way.changes) {
      Recipe changed = r;
      change.apply(changed);
      if (!allowed(changed)) continue;
      Plan tried;
      try {
        tried = make_plan(changed, profile, ranks_to_plan(changed, profile));
      } catch (const Error&) {
        continue;  // no recompute policy fits
      }
      tried.node = plan.node;
      if (!fits(tried)) continue;
      int64_t most = 0;
      for (const MemoryLimit& limit : memory_limits(tried)) most = std::max(most, limit.rank_bytes);
      const double more = (tried.step_seconds() / plan.step_seconds() - 1) * 100;
      found.emplace_back(
          tried.step_seconds(),
          fmt::format("{} (a rank needs {}, a step takes {})", change.settings, bytes_text(most),
                      std::abs(more) < 0.05
                          ? "as long"
                          : fmt::format("{:.1f} % {}", std::abs(more), more > 0 ? "longer" : "less")));
      break;
    }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (auto& [seconds, text] : found) out.push_back(std::move(text));
  return out;
}

}  // namespace ltrain
