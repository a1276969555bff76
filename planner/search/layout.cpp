#include "planner/search/layout.h"

#include <fmt/format.h>

#include "parallel/pipeline/schedule.h"
#include "runtime/recipe/diagnostics.h"

namespace ltrain {
namespace {

/// Moves a kind of tensor to host memory or back, as `away` requests.
void set_place(OffloadPlace& place, bool away) {
  if (away != place.on() || place.device == OffloadDevice::automatic)
    place.device = away ? OffloadDevice::cpu : OffloadDevice::none;
}

/// Default modules of `selective` if the recipe gives none: those with much memory for little time.
std::vector<RecomputeModule> cheap_modules(const Recipe& r) {
  using enum RecomputeModule;
  if (r.model.moe.num_experts > 0) return {layernorm};
  return {layernorm, mlp_act};
}

}  // namespace

void set_layout(Recipe& r, const Layout& l) {
  Parallel& p = r.parallel;
  p.tensor = l.tensor, p.sequence_parallel = l.sequence_parallel;
  p.pipeline = l.pipeline, p.virtual_pipeline = l.virtual_pipeline, p.schedule = l.schedule;
  p.context = l.context, p.context_comm = l.context_comm;
  p.expert = l.expert, p.expert_tensor = l.expert_tensor;
  p.data = l.data, p.zero_stage = l.zero_stage, p.shard_group = l.shard_group;
  p.reshard_after_forward = l.reshard, p.zero_layers = l.zero_layers;
  r.train.micro_batch_size = l.micro_batch, r.train.global_batch_size = l.global_batch;
  r.precision = l.precision;
  const bool given =
      r.origins && (r.origins->has("recompute.modules") || r.origins->has("recompute.tensors"));
  if (!given)
    r.recompute.modules =
        l.recompute == RecomputeGranularity::selective ? cheap_modules(r) : std::vector<RecomputeModule>{};
  r.recompute.granularity = l.recompute;
  p.tensor_mode = l.tensor_mode, p.tensor_depth = l.tensor_depth, p.order = l.order;
  p.overlap_micro_batches = l.overlap;
  set_place(r.offload.optimizer, l.offload_optimizer);
  set_place(r.offload.activations, l.offload_activations);
  set_place(r.offload.params, l.offload_params);
  if (l.row_budget > 0) r.model.moe.row_budget = l.row_budget;
}

bool has_pairs(const Layout& l) {
  const pipeline::ScheduleInfo* schedule = pipeline::find_schedule(l.schedule);
  if (l.pipeline == 1 || !schedule) return l.pipeline > 1;
  return schedule->pairs == pipeline::Pairs::intended ||
         (schedule->pairs == pipeline::Pairs::possible && l.overlap == OverlapChoice::on);
}

bool may_hide_collectives(const Layout& l) {
  const bool turns = l.overlap == OverlapChoice::on || (l.overlap == OverlapChoice::automatic &&
                                                        (l.tensor > 1 || l.context > 1 || l.expert > 1));
  return turns && (l.pipeline == 1 || has_pairs(l));
}

bool offloads(const OffloadPlace& place) { return place.on() && place.device != OffloadDevice::automatic; }

std::vector<Setting> settings_of(const Layout& l, const Recipe& r) {
  std::vector<Setting> out;
  const auto set = [&](const char* key, const auto& value, const auto& default_value) {
    if (value != default_value) out.emplace_back(key, fmt::format("{}", value));
  };
  const Parallel& p = r.parallel;
  set("parallel.tensor", l.tensor, p.tensor);
  set("parallel.sequence_parallel", l.sequence_parallel, p.sequence_parallel);
  set("parallel.pipeline", l.pipeline, p.pipeline);
  set("parallel.schedule", l.schedule, p.schedule);
  set("parallel.virtual_pipeline", l.virtual_pipeline, p.virtual_pipeline);
  set("parallel.context", l.context, p.context);
  set("parallel.context_comm", to_string(l.context_comm), to_string(p.context_comm));
  set("parallel.expert", l.expert, p.expert);
  // Its default depends on parallel.tensor.
  if (r.model.moe.num_experts > 0 && l.tensor > 1)
    out.emplace_back("parallel.expert_tensor", std::to_string(l.expert_tensor));
  set("parallel.data", l.data, p.data);
  set("parallel.zero_stage", l.zero_stage, p.zero_stage);
  set("parallel.reshard_after_forward", l.reshard, p.reshard_after_forward);
  set("parallel.zero_layers", l.zero_layers, p.zero_layers);
  if (l.shard_group != p.shard_group) out.emplace_back("parallel.shard_group", "node");
  set("train.micro_batch_size", l.micro_batch, r.train.micro_batch_size);
  set("train.global_batch_size", l.global_batch, r.train.global_batch_size);
  set("precision", to_string(l.precision), to_string(r.precision));
  set("recompute.granularity", to_string(l.recompute), to_string(r.recompute.granularity));
  const bool given =
      r.origins && (r.origins->has("recompute.modules") || r.origins->has("recompute.tensors"));
  if (l.recompute == RecomputeGranularity::selective && !given) {
    std::string names;
    for (RecomputeModule m : cheap_modules(r))
      names += (names.empty() ? "" : ",") + std::string(to_string(m));
    out.emplace_back("recompute.modules", "[" + names + "]");
  }
  set("parallel.tensor_mode", to_string(l.tensor_mode), to_string(p.tensor_mode));
  set("parallel.tensor_depth", l.tensor_depth, p.tensor_depth);
  set("parallel.order", l.order, p.order);
  set("parallel.overlap_micro_batches", to_string(l.overlap), to_string(p.overlap_micro_batches));
  const auto place = [&](const char* key, bool away, const OffloadPlace& given) {
    if (away ? !offloads(given) : given.device == OffloadDevice::automatic)
      out.emplace_back(key, away ? "cpu" : "none");
  };
  place("offload.optimizer.device", l.offload_optimizer, r.offload.optimizer);
  place("offload.activations.device", l.offload_activations, r.offload.activations);
  place("offload.params.device", l.offload_params, r.offload.params);
  set("model.moe.row_budget", l.row_budget, r.model.moe.row_budget.value_or(0));
  return out;
}

std::string layout_text(const Layout& l, const Recipe& r) {
  std::vector<std::string> parts;
  if (l.tensor > 1)
    parts.push_back(
        fmt::format("tensor {}{}{}", l.tensor,
                    l.tensor_mode == TensorModeChoice::one_d ? "" : fmt::format(" in {}", l.tensor_mode),
                    l.sequence_parallel ? " with sequence parallelism" : ""));
  if (l.pipeline > 1)
    parts.push_back(fmt::format(
        "pipeline {} {}{}", l.pipeline, l.schedule,
        l.virtual_pipeline > 1 ? fmt::format(" of {} chunks", l.virtual_pipeline) : std::string()));
  if (l.context > 1) parts.push_back(fmt::format("context {} {}", l.context, to_string(l.context_comm)));
  if (l.expert > 1)
    parts.push_back(fmt::format("expert {}{}", l.expert,
                                l.tensor > 1 ? fmt::format(" expert_tensor {}", l.expert_tensor) : ""));
  if (l.row_budget > 0) parts.push_back(fmt::format("row budget {}", l.row_budget));
  parts.push_back(fmt::format("data {}", l.data));
  if (l.zero_stage > 0)
    parts.push_back(fmt::format("ZeRO {}{}{}{}", l.zero_stage, l.shard_group == kNode ? " in a node" : "",
                                l.reshard ? "" : " with weights gathered once a step",
                                l.zero_layers == 0 ? ""
                                                   : fmt::format(" with {} layer{} of ZeRO 2", l.zero_layers,
                                                                 l.zero_layers == 1 ? "" : "s")));
  parts.push_back(fmt::format("micro-batch {}", l.micro_batch));
  if (l.global_batch != r.train.global_batch_size)
    parts.push_back(fmt::format("global batch {}", l.global_batch));
  if (l.precision != r.precision) parts.emplace_back(to_string(l.precision));
  if (l.recompute != RecomputeGranularity::none)
    parts.push_back(fmt::format("{} recompute", to_string(l.recompute)));
  if (l.order != r.parallel.order) parts.push_back(fmt::format("order {}", l.order));
  if (l.overlap != r.parallel.overlap_micro_batches)
    parts.emplace_back(l.overlap == OverlapChoice::on ? "micro-batches by turns" : "micro-batches apart");
  std::vector<std::string> away;
  if (l.offload_optimizer && !offloads(r.offload.optimizer)) away.emplace_back("optimizer state");
  if (l.offload_params && !offloads(r.offload.params)) away.emplace_back("weights");
  if (l.offload_activations && !offloads(r.offload.activations)) away.emplace_back("activations");
  if (!away.empty()) parts.push_back(fmt::format("{} in host memory", fmt::join(away, " and ")));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace ltrain
