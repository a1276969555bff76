#include "runtime/plan/search_estimate.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/simulate.h"
#include "runtime/plan/schedule_plan.h"

namespace ltrain {
namespace {

/// Whose time is averaged: of MoE models not all layers are alike.
int64_t pass_layers(const ModelConfig& m) {
  return std::min<int64_t>(m.moe.num_experts > 0 ? 4 : 1, m.num_hidden_layers);
}

double kind_bytes(const RankPlan& plan, MemoryKind kind) {
  return static_cast<double>(plan.arena.most_by_kind[static_cast<int>(kind)]);
}

double arena_states(const RankPlan& plan) {
  return kind_bytes(plan, MemoryKind::parameters) + kind_bytes(plan, MemoryKind::gradients) +
         kind_bytes(plan, MemoryKind::optimizer);
}

double mean(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return v.empty() ? 0 : sum / static_cast<double>(v.size());
}

/// Of the stages of `ranks` the one with most, in layers: embedding and head cost as much as `ends` layers,
/// and the last stage has fewer layers for it.
double most_layers(int64_t layers, int64_t ranks, double ends) {
  if (ranks == 1) return static_cast<double>(layers) + ends;
  double best = static_cast<double>(layers) + ends;
  const int64_t even = layers / ranks;
  for (int64_t k = std::max<int64_t>(1, even); k <= even + 2; ++k) {
    const int64_t last = std::max<int64_t>(1, layers - (ranks - 1) * k);
    best = std::min(best, std::max(static_cast<double>(k), static_cast<double>(last) + ends));
  }
  return best;
}

}  // namespace

Estimator::Part Estimator::pass(const Layout& l) const {
  Layout alone = l;
  alone.pipeline = alone.virtual_pipeline = 1;
  alone.schedule = "1f1b";
  alone.zero_stage = 0;
  alone.shard_group = kOneLevel;
  alone.data = l.expert > 1 ? std::max<int64_t>(1, l.expert) : 1;
  alone.global_batch = alone.micro_batch * alone.data;
  Recipe r = given_;
  set_layout(r, alone);
  r.parallel.pipeline_layers.clear();
  r.parallel.schedule_file.reset();
  r.parallel.hierarchical_reduction = kOneLevel;
  r.train.eval_interval = 0;
  const int world = static_cast<int>(alone.tensor * alone.context * alone.data);
  const int64_t layers = r.model.num_hidden_layers;
  r = resolve(r, world, std::min(limits_.ranks_per_node, world));
  const auto plan = [&](int64_t n) {
    r.model.num_hidden_layers = n;
    return plan_rank(r, profile_, {}, 0, threads_per_rank(r), 0);
  };
  const RankPlan one = plan(1), two = plan(std::min<int64_t>(2, layers));
  r.model.num_hidden_layers = layers;
  r.model.num_hidden_layers = pass_layers(r.model);
  const pipeline::LayerCosts costs = layer_costs(r, profile_);
  Part p;
  p.forward = mean(costs.forward);
  p.backward = mean(costs.input) + mean(costs.weight);
  p.ends = costs.first_forward + costs.first_input + costs.first_weight + costs.last_forward +
           costs.last_input + costs.last_weight;
  const auto update = [&](const RankPlan& of, double n) {
    return std::max(0.0, of.step_seconds - p.ends - n * (p.forward + p.backward));
  };
  p.update = update(one, 1);
  p.update_layer = std::max(0.0, update(two, 2) - p.update);
  const auto more = [&](MemoryKind kind) { return kind_bytes(two, kind) - kind_bytes(one, kind); };
  p.layer_params = more(MemoryKind::parameters);
  p.layer_grads = more(MemoryKind::gradients);
  p.layer_states = more(MemoryKind::optimizer);
  p.layer_activations = more(MemoryKind::activations);
  p.rest_params = kind_bytes(one, MemoryKind::parameters) - p.layer_params;
  p.rest_grads = kind_bytes(one, MemoryKind::gradients) - p.layer_grads;
  p.rest_states = kind_bytes(one, MemoryKind::optimizer) - p.layer_states;
  p.other_bytes = static_cast<double>(one.total_bytes) - arena_states(one) - p.layer_activations;
  return p;
}

const Estimator::Part& Estimator::part(const Layout& l) {
  const PartKey key{l.tensor,        l.sequence_parallel, l.context,   l.context_comm, l.expert,
                    l.expert_tensor, l.micro_batch,       l.recompute, l.precision};
  const auto it = parts_.find(key);
  return it != parts_.end() ? it->second : parts_.emplace(key, pass(l)).first->second;
}

const Estimator::Pace& Estimator::pace(const Layout& l, int64_t micros) {
  // From so many on, each micro-batch adds the same.
  const int64_t most = 4 * l.pipeline, simulated = micros > most ? most + micros % l.pipeline : micros;
  const auto [it, fresh] = paces_.try_emplace({l.schedule, l.pipeline, l.virtual_pipeline, simulated});
  if (fresh) {
    const pipeline::Schedule s =
        pipeline::make_schedule(l.schedule, static_cast<int>(l.pipeline),
                                static_cast<int>(l.virtual_pipeline), static_cast<int>(simulated));
    const pipeline::Timing t = pipeline::simulate(s, pipeline::StageCosts::uniform(s.stages()));
    const double chunks = static_cast<double>(l.virtual_pipeline);
    it->second.micros = t.makespan / (3 * chunks) - static_cast<double>(simulated);
    it->second.kept = *std::max_element(t.peak_activations.begin(), t.peak_activations.end()) / chunks;
  }
  return it->second;
}

Estimator::Line Estimator::line(const std::string& name, const std::vector<int>& group) const {
  Line out;
  const int n = static_cast<int>(group.size());
  if (n < 2) return out;
  const ProfileCost cost(profile_, 1, false, limits_.ranks_per_node, limits_.world);
  OpCost op;
  op.name = op.collective = name;
  op.cls = OpClass::collective;
  op.group_size = n;
  op.ranks = &group;
  const bool far = group.front() / limits_.ranks_per_node != group.back() / limits_.ranks_per_node;
  const auto seconds = [&](double bytes) {
    op.bytes = bytes;
    op.wire_bytes = bytes * (n - 1) / n * (name == "all_reduce" ? 2 : 1);
    op.network_bytes = far ? op.wire_bytes : 0;
    return cost.seconds(op);
  };
  const double low = 0x1p24, high = 0x1p30, at_low = seconds(low), at_high = seconds(high);
  out.per_byte = (at_high - at_low) / (high - low);
  out.fixed = std::max(0.0, at_low - low * out.per_byte);
  out.stolen = at_high > 0 ? cost.stolen_seconds(op) / at_high : 0;
  return out;
}

const Estimator::Sums& Estimator::sums(const Layout& l) {
  const auto [it, fresh] =
      sums_.try_emplace({l.tensor, l.pipeline, l.context, l.data, l.zero_stage > 0, l.shard_group});
  if (!fresh) return it->second;
  Recipe r = given_;
  set_layout(r, l);
  r = resolve(r, limits_.world, limits_.ranks_per_node);
  const Mesh mesh = mesh_of(r, 0);
  const std::vector<int> near = mesh.group(mesh.shard);
  Sums& s = it->second;
  s.parts = static_cast<double>(near.size());
  s.scatter = line("reduce_scatter", near);
  s.gather = line("all_gather", near);
  if (!mesh.two_levels()) return s;
  const Line across = line("all_reduce", mesh.group(mesh.replicate()));
  s.scatter.fixed += across.fixed;
  s.scatter.per_byte += across.per_byte / s.parts;
  return s;
}

Estimate Estimator::of(const Layout& l) {
  const Part& p = part(l);
  const Sums& s = sums(l);
  const int64_t micros = l.global_batch / (l.micro_batch * l.data);
  const double m = static_cast<double>(micros), layer = p.forward + p.backward;
  const double ends = layer > 0 ? p.ends / layer : 0;
  const double layers = most_layers(given_.model.num_hidden_layers, l.pipeline, ends);
  const bool auto_schedule = l.schedule == "auto" || given_.parallel.schedule_file;
  Pace pace;
  if (l.pipeline > 1 && !auto_schedule) pace = this->pace(l, micros);
  const double compute = (m + pace.micros) * layers * layer;
  // Of a rank's layers: gradients are summed beside the backward pass of the last micro-batch, or of each.
  const double own =
      std::ceil(static_cast<double>(given_.model.num_hidden_layers) / static_cast<double>(l.pipeline));
  const double rest = l.pipeline > 1 ? 0.5 : 1;  // embedding or head
  const double params = own * p.layer_params + rest * p.rest_params,
               grads = own * p.layer_grads + rest * p.rest_grads,
               states = own * p.layer_states + rest * p.rest_states;
  const double cut = s.parts;
  const double scatter = s.scatter.at(grads), gather = s.gather.at(params);
  const double forward = own * p.forward, backward = own * p.backward;
  double communication = 0, beside = 0;
  if (l.zero_stage <= 1) {
    const double after = l.zero_stage == 1 ? gather : s.gather.at(grads);
    communication = std::max(0.0, scatter - backward) + after;
    beside = scatter;
  } else if (l.zero_stage == 2) {
    communication = m * std::max(0.0, scatter - backward) + gather;
    beside = m * scatter;
  } else {
    communication = m * (std::max(0.0, scatter + gather - backward) + std::max(0.0, gather - forward));
    beside = m * (scatter + 2 * gather);
  }
  double update = p.update + (own - 1) * p.update_layer;
  if (l.zero_stage > 0) update /= cut;
  Estimate e;
  e.step_seconds = compute + communication + s.scatter.stolen * beside + update;
  const double kept = std::min(pace.kept, m) * own * p.layer_activations;
  e.bytes = p.other_bytes + kept + states / (l.zero_stage > 0 ? cut : 1) +
            grads / (l.zero_stage > 1 ? cut : 1) + params / (l.zero_stage > 2 ? cut : 1);
  if (l.zero_stage > 2) e.bytes += 2 * p.layer_params;  // layers that are gathered
  return e;
}

}  // namespace ltrain
