#include "planner/search/search_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "parallel/pipeline/simulate_checked.h"
#include "runtime/plan/pass_costs.h"
#include "runtime/plan/schedule_plan.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/derived.h"

namespace ltrain {
namespace {

constexpr double kRounding = 1 - 1e-9;  // sums in another order

double kind_bytes(const MemoryUse& use, MemoryKind kind) {
  return static_cast<double>(use.most_by_kind[static_cast<int>(kind)]);
}

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

/// Lower bound for `n` equal layers, from the cheapest priced one.
double seconds_of(const std::vector<double>& priced, int64_t n) {
  if (static_cast<int64_t>(priced.size()) == n) return sum(priced);
  return static_cast<double>(n) * *std::min_element(priced.begin(), priced.end());
}

/// Seconds of the ops of the first micro-batch, without waits for collectives. `r`: on one pipeline rank.
double compute_seconds(Recipe r, const MachineProfile& profile) {
  r.train.global_batch_size *= 2;
  r.parallel.overlap_micro_batches = r.parallel.async_tensor_parallel = OverlapChoice::off;
  double seconds = 0;
  const PipelineLayout layout{{}, {}, recompute_options(r)};
  each_usual_op(pass_entries(r, profile, layout, priced_end(r)),
                [&](const TraceEntry& op, double, bool) { seconds += op.seconds; });
  return seconds;
}

/// Per rank: maximum of saved activations after every stage of the rank has run a backward.
std::vector<double> kept_with_gradients(const pipeline::Schedule& schedule,
                                        const std::vector<double>& activation) {
  std::vector<double> out;
  for (const std::vector<pipeline::Action>& order : schedule.order) {
    std::set<int> stages, with_gradients;
    for (const pipeline::Action& a : order) stages.insert(a.stage);
    double kept = 0, most = 0;
    for (const pipeline::Action& a : order) {
      if (a.kind == pipeline::ActionKind::backward_input) continue;
      const double keeps = activation[static_cast<size_t>(a.stage)];
      if (a.kind == pipeline::ActionKind::forward) {
        kept += keeps;
      } else {
        kept -= keeps;
        with_gradients.insert(a.stage);
      }
      if (with_gradients.size() == stages.size()) most = std::max(most, kept);
    }
    out.push_back(most);
  }
  return out;
}

/// Cost of a collective of `ranks`, `others` of which are on other hosts.
OpCost collective_cost(const char* op, double bytes, const std::vector<int>& ranks, double others,
                       DType type) {
  const double size = static_cast<double>(ranks.size());
  OpCost c;
  c.name = c.collective = op;
  c.cls = OpClass::collective;
  c.dtype = type;
  c.bytes = bytes;
  c.wire_bytes = bytes * (size - 1) / size;
  c.network_bytes = c.wire_bytes * others / (size - 1);
  c.group_size = static_cast<int>(ranks.size());
  c.ranks = &ranks;
  return c;
}

bool completes_gradients(const pipeline::Action& a) {
  return a.kind == pipeline::ActionKind::backward || a.kind == pipeline::ActionKind::backward_weight;
}

/// Returns per rank the start of the first action of the last micro-batch that completes gradients.
std::vector<double> reduces_from(const pipeline::Schedule& schedule, const pipeline::Timing& timing) {
  std::vector<double> out;
  for (size_t rank = 0; rank < schedule.order.size(); ++rank) {
    const std::vector<pipeline::Action>& order = schedule.order[rank];
    const auto first = std::ranges::find_if(order, [&](const pipeline::Action& a) {
      return a.micro + 1 == schedule.micros && completes_gradients(a);
    });
    out.push_back(first == order.end() ? timing.makespan
                                       : timing.start[rank][static_cast<size_t>(first - order.begin())]);
  }
  return out;
}

}  // namespace

SearchParts::PartKey SearchParts::key_of(const Layout& l) {
  return {.tensor = l.tensor,
          .sequence_parallel = l.sequence_parallel,
          .context = l.context,
          .context_comm = l.context_comm,
          .expert = l.expert,
          .expert_tensor = l.expert_tensor,
          .micro_batch = l.micro_batch,
          .recompute = l.recompute,
          .precision = l.precision,
          .hides_collectives = hides_collectives(l),
          .in_chunks = may_hide_collectives(l) && l.global_batch > l.micro_batch * l.data,
          .tensor_mode = l.tensor_mode,
          .offload_optimizer = l.offload_optimizer,
          .offload_activations = l.offload_activations,
          .row_budget = l.row_budget};
}

SearchParts::ActionsKey SearchParts::actions_key_of(const Layout& l) {
  return {.part = key_of(l),
          .schedule = l.schedule,
          .pipeline = l.pipeline,
          .virtual_pipeline = l.virtual_pipeline,
          .micro_batches = l.global_batch / (l.micro_batch * l.data)};
}

SearchParts::ShardKey SearchParts::shard_key_of(const Layout& l) {
  return {.tensor = l.tensor,
          .context = l.context,
          .pipeline = l.pipeline,
          .data = l.data,
          .shard_group = l.shard_group,
          .order = l.order};
}

bool SearchParts::moves_experts(const Layout& l) {
  return l.pipeline == 1 && l.expert > 1 && l.zero_stage > 0 && l.shard_group != kOneLevel;
}

bool SearchParts::hides_collectives(const Layout& l) { return moves_experts(l) || may_hide_collectives(l); }

bool SearchParts::composes(const Layout& l) const {
  return l.schedule != "auto" && l.recompute != RecomputeGranularity::automatic;
}

Recipe SearchParts::recipe_of(const Layout& l) const {
  Recipe r = given_;
  set_layout(r, l);
  return resolve(r, limits_.world, limits_.ranks_per_node);
}

SearchParts::Part SearchParts::make_part(const Layout& l) const {
  Recipe r = recipe_of(l);
  r.parallel.async_tensor_parallel =
      recipe::async_tensor_parallel(r) ? OverlapChoice::on : OverlapChoice::off;
  r.parallel.pipeline = r.parallel.virtual_pipeline = 1;
  r.parallel.pipeline_layers.clear();
  r.parallel.schedule_file.reset();
  r.parallel.schedule = "1f1b";
  if (r.parallel.expert == 1) r.parallel.data = 1;
  r.parallel.zero_stage = 0;
  r.parallel.shard_ranks = 0;
  r.offload.params = {};
  r.diloco.shares.clear();
  r.train.global_batch_size = r.train.micro_batch_size * r.parallel.data;
  r.train.eval_interval = 0;
  const int64_t layers = r.model.num_hidden_layers;
  const bool few = layers_alike(r) && layers > 2;
  Part p;
  const auto add = [&](const MemoryUse& use, double times) {
    p.params += times * kind_bytes(use, MemoryKind::parameters);
    p.grads += times * kind_bytes(use, MemoryKind::gradients);
    p.states += times * kind_bytes(use, MemoryKind::optimizer);
  };
  r.model.num_hidden_layers = few ? 1 : layers;
  const RankPlan plan = plan_rank(r, profile_, {}, 0, threads_per_rank(r));
  add(plan.arena, 1);
  // On CPUs it also contains the checkpoint's staging memory, which ZeRO shards.
  if (profile_.device_bytes > 0) p.external = static_cast<double>(plan.total_bytes - plan.arena.arena_bytes);
  if (few) {
    // A second layer adds its memory before the step.
    const MemoryUse one = before_step(r, profile_);
    r.model.num_hidden_layers = 2;
    const MemoryUse two = before_step(r, profile_);
    const double more = static_cast<double>(layers - 1);
    add(two, more), add(one, -more);
    p.layer_params = kind_bytes(two, MemoryKind::parameters) - kind_bytes(one, MemoryKind::parameters);
    p.layer_grads = kind_bytes(two, MemoryKind::gradients) - kind_bytes(one, MemoryKind::gradients);
    p.layer_states = kind_bytes(two, MemoryKind::optimizer) - kind_bytes(one, MemoryKind::optimizer);
  }
  if (hides_collectives(l)) {
    const auto seconds = [&](int64_t n) {
      r.model.num_hidden_layers = n;
      return compute_seconds(r, profile_);
    };
    const double one = few ? seconds(1) : 0;
    p.micro_seconds = few ? one + static_cast<double>(layers - 1) * (seconds(2) - one) : seconds(layers);
    if (moves_experts(l)) return p;
  }
  r.model.num_hidden_layers = few ? 2 : layers;
  const pipeline::LayerCosts c = layer_costs(r, profile_);
  if (!hides_collectives(l))
    p.micro_seconds = seconds_of(c.forward, layers) + seconds_of(c.input, layers) +
                      seconds_of(c.weight, layers) + c.first_forward + c.first_input + c.first_weight +
                      c.last_forward + c.last_input + c.last_weight;
  if (few && !c.activation.empty() && !l.offload_activations)
    p.activations = static_cast<double>(layers) * std::max(0.0, c.activation.front());
  return p;
}

/// Traffic that a third micro-batch adds to the second, and a second layer to the first.
SearchParts::Traffic SearchParts::make_traffic(const Layout& l) const {
  Recipe r = recipe::micro_batches_apart(recipe_of(l));
  r.parallel.pipeline = r.parallel.virtual_pipeline = 1;
  r.parallel.pipeline_layers.clear();
  r.parallel.schedule_file.reset();
  r.parallel.schedule = "1f1b";
  r.parallel.context = 1;
  r.parallel.data = 2;
  r.parallel.zero_layers = 0;
  r.parallel.shard_ranks = 0;
  r.diloco.shares.clear();
  r.train.eval_interval = 0;
  const auto moved = [&](int64_t layers, int64_t micros) {
    r.model.num_hidden_layers = layers;
    r.train.global_batch_size = micros * r.train.micro_batch_size * r.parallel.data;
    Traffic t;
    for (const CollectivePlan& c : plan_rank(r, profile_, {}, 0, threads_per_rank(r)).collectives) {
      if (c.group != "dp" || (c.op != "all_gather" && c.op != "reduce_scatter")) continue;
      (c.op == "all_gather" ? t.gathered : t.reduced) += static_cast<double>(c.bytes);
    }
    return t;
  };
  const Traffic one2 = moved(1, 2), one3 = moved(1, 3), two2 = moved(2, 2), two3 = moved(2, 3);
  Traffic t{two3.gathered - two2.gathered - (one3.gathered - one2.gathered),
            two3.reduced - two2.reduced - (one3.reduced - one2.reduced)};
  t.reduced_once = std::max(0.0, two2.reduced - one2.reduced - 2 * t.reduced);
  if (l.zero_stage < 3 || !l.reshard) t.gathered_once = two2.gathered - one2.gathered;
  return t;
}

/// Time of one stream's collectives, each priced as one call for all layers. Separate calls do not take less.
SearchParts::TrafficSeconds SearchParts::traffic_seconds(const Layout& l) {
  if (l.zero_stage < 1 || l.expert > 1 || !composes(l) || !layers_alike(given_) ||
      given_.model.moe.num_experts > 0)
    return {};
  const TrafficKey key{.tensor = l.tensor,
                       .tensor_mode = l.tensor_mode,
                       .zero_stage = l.zero_stage,
                       .reshard = l.reshard,
                       .precision = l.precision};
  return traffic_seconds_.get(
      {.traffic = key,
       .shard = shard_key_of(l),
       .virtual_pipeline = l.virtual_pipeline,
       .zero_layers = l.zero_layers,
       .hides_collectives = hides_collectives(l)},
      [&] {
        const Traffic& t = traffic_.get(key, [&] { return make_traffic(l); });
        const Recipe r = recipe_of(l);
        const Mesh mesh = mesh_of(r, 0);
        const std::vector<int> ranks = mesh.group(mesh.shard);
        if (ranks.size() < 2) return TrafficSeconds();
        const auto on_host = static_cast<int>(r.launch.ranks_on_host);
        const ProfileCost cost(profile_, threads_per_rank(r), false, on_host, mesh.world());
        const double others = static_cast<double>(
            std::count_if(ranks.begin(), ranks.end(), [&](int rank) { return rank / on_host != 0; }));
        const DType type = precision_policy(std::string(to_string(r.precision))).compute;
        const auto call = [&](const char* op, double bytes) {
          return collective_cost(op, bytes, ranks, others, type);
        };
        const auto seconds = [&](const char* op, double bytes) {
          return bytes > 0 ? cost.seconds(call(op, bytes)) : 0;
        };
        // With samples of a machine, several calls may take less time than one.
        const auto stolen = [&](const char* op, double bytes) {
          return bytes > 0 && profile_.collectives.empty() ? cost.stolen_seconds(call(op, bytes)) : 0;
        };
        const double layers =
            static_cast<double>(given_.model.num_hidden_layers) / static_cast<double>(l.pipeline);
        // The backward reuses the last layer of each chunk from the forward. Two overlapped passes share the
        // layers at which they meet, and the prefetched one.
        const int64_t shared = hides_collectives(l) ? 3 : 0, kept = l.virtual_pipeline * (1 + l.zero_layers);
        const double gathers = std::max(0.0, layers - static_cast<double>(shared + kept));
        const double reducing = stolen("reduce_scatter", layers * t.reduced);
        return TrafficSeconds{
            seconds("all_gather", gathers * t.gathered) + seconds("reduce_scatter", layers * t.reduced),
            seconds("all_gather", layers * t.gathered_once),
            stolen("all_gather", gathers * t.gathered) + reducing,
            reducing / layers,
            stolen("reduce_scatter", layers * t.reduced_once) / layers,
            profile_.collectives.empty() ? seconds("reduce_scatter", layers * t.reduced_once) : 0};
      });
}

double SearchParts::first_wait(const Layout& l, double layers, double forward, double last) {
  // In one call for all of a rank's layers, no part takes longer than in its own call.
  const double all = static_cast<double>(given_.model.num_hidden_layers) / static_cast<double>(l.pipeline);
  return std::max(0.0, std::min(1.0, layers / all) * traffic_seconds(l).once + last - forward);
}

/// Number of shards per rank with ZeRO from stage `from` on.
double SearchParts::shards(const Layout& l, int64_t from) {
  if (l.zero_stage < from) return 1;
  const int64_t replicas = l.data * l.context;
  if (l.shard_group == kOneLevel) return static_cast<double>(replicas);
  // Experts are sharded differently, into at most this many.
  if (l.expert > 1) return static_cast<double>(std::min<int64_t>(replicas, limits_.ranks_per_node));
  return static_cast<double>(shard_ranks_.get(shard_key_of(l), [&] {
    const Mesh mesh = mesh_of(recipe_of(l), 0);
    return mesh.group(mesh.shard).size();
  }));
}

/// Costs of a layout. With offload that the recipe does not request, the offloaded bytes are subtracted from
/// those of the layout without offload, because a pass with windows for all states of an unsharded model
/// would take very long.
SearchParts::Part SearchParts::part(const Layout& l) {
  Layout resident = l;
  resident.offload_optimizer = given_.offload.optimizer.on();
  resident.offload_activations = given_.offload.activations.on();
  Part p = parts_.get(key_of(resident), [&] { return make_part(resident); });
  if (l.offload_optimizer != resident.offload_optimizer) p.states = p.layer_states = 0;
  if (l.offload_activations != resident.offload_activations) p.activations = 0;
  return p;
}

/// Additional bytes of a layer's full gradients with sharded gradients. They exist at the end of its
/// backward, together with all activations except its own.
double SearchParts::whole_gradients(const Part& p, const Layout& l) {
  const double own = p.activations / static_cast<double>(given_.model.num_hidden_layers);
  return std::max(0.0, p.layer_grads * (1 - 1 / shards(l, 2)) - own);
}

Bound SearchParts::bound(const Layout& l) {
  const Part p = part(l);
  const double micros = static_cast<double>(l.global_batch / (l.micro_batch * l.data)),
               stages = static_cast<double>(l.pipeline);
  // One of the ranks has at least its share of each. With several micro-batches, the second finds the
  // gradients of the first after all forwards that the schedule runs before a backward.
  const double grads = p.grads / shards(l, 2), params = l.offload_params ? 0 : p.params / shards(l, 3);
  const bool both = micros > (l.pipeline == 1 ? 1 : 2 * stages * static_cast<double>(l.virtual_pipeline));
  const double kept =
      params + p.states / shards(l, 1) + (both ? p.activations + grads : std::max(p.activations, grads));
  // The backward needs the full weights of one layer, or of all.
  const double some = p.layer_params * (1 - 1 / shards(l, 3)), all = p.params / stages;
  // The first layers of each stage stay gathered, and no stage has more than these.
  const int64_t most = (given_.model.num_hidden_layers + l.pipeline - 1) / l.pipeline;
  const double layers = static_cast<double>(std::clamp<int64_t>(l.zero_layers, 1, most));
  const double whole = given_.model.moe.num_experts > 0 ? 0 : l.reshard ? layers * some : all;
  const TrafficSeconds traffic = traffic_seconds(l);
  const double compute = micros * (p.micro_seconds / stages + traffic.stolen);
  // A schedule file may have pairs, which hide more than the layout says.
  const bool file = l.pipeline > 1 && given_.parallel.schedule_file;
  const double gradients = given_.model.moe.num_experts > 0 ? 0 : whole_gradients(p, l);
  return {file ? 0 : kRounding * std::max(compute, micros * traffic.micro + traffic.once),
          kRounding * (kept / stages + whole + gradients + p.external)};
}

int64_t SearchParts::zero_layers_in(const Layout& l, double free) {
  const double layer =
      part(l).layer_params * (1 - 1 / shards(l, 3)) * static_cast<double>(l.virtual_pipeline);
  const int64_t most = given_.model.num_hidden_layers / (l.pipeline * l.virtual_pipeline);
  return layer > 0 ? std::min(most, static_cast<int64_t>(free / layer)) : 0;
}

const pipeline::LayerCosts& SearchParts::costs(const Layout& l) {
  return costs_.get(key_of(l), [&] { return layer_costs(recipe_of(l), profile_); });
}

PipelinePlan SearchParts::pipeline(const Layout& l, const Recipe& recipe) {
  if (l.pipeline == 1 || !composes(l)) return plan_pipeline(recipe, profile_);
  pipeline::LayerCosts shared = costs(l);
  shared.transfer = transfer_seconds(recipe, profile_);
  return plan_pipeline(recipe, profile_, &shared);
}

double SearchParts::least_actions(const Layout& l) {
  const Parallel& given = given_.parallel;
  if (given.schedule_file || !given.pipeline_layers.empty() || hides_collectives(l)) return 0;
  const int ranks = static_cast<int>(l.pipeline), chunks = static_cast<int>(l.virtual_pipeline);
  const std::vector<int> places = pipeline::place_stages(l.schedule, ranks, chunks);
  const bool in_v = places.back() == 0 && ranks > 1;
  const pipeline::StageCosts& staged = staged_.get({key_of(l), l.pipeline, l.virtual_pipeline, in_v}, [&] {
    return pipeline::stage_costs(costs(l), places).costs;
  });
  const auto micros = static_cast<int>(l.global_batch / (l.micro_batch * l.data));
  const bool splits = pipeline::find_schedule(l.schedule)->splits_backward;
  return kRounding * pipeline::least_makespan(places, staged, micros, splits);
}

Bound SearchParts::actions(const Layout& l) {
  const Actions& a = actions_.get(actions_key_of(l), [&] {
    const PipelinePlan plan = pipeline(l, recipe_of(l));
    const pipeline::Schedule& schedule = plan.layout.schedule;
    Actions made{plan.timing.makespan, std::vector<double>(static_cast<size_t>(schedule.ranks)),
                 plan.timing.peak_kept, kept_with_gradients(schedule, plan.costs.activation)};
    const int first = plan.layout.stage_layers.front();
    made.first_layers = first;
    made.first_forward = plan.costs.forward.front();
    made.first_last = costs(l).forward.at(static_cast<size_t>(first) - 1);
    for (size_t stage = 0; stage < plan.layout.stage_layers.size(); ++stage)
      made.layers[static_cast<size_t>(schedule.rank_of_stage[stage])] += plan.layout.stage_layers[stage];
    made.reduces_from = reduces_from(schedule, plan.timing);
    return made;
  });
  const Part p = part(l);
  double most = 0;
  // Not with experts, whose token rows are planned for the worst routing.
  if (p.layer_params > 0 && given_.model.moe.num_experts == 0 && !l.offload_params && !l.offload_activations)
    for (size_t rank = 0; rank < a.kept.size(); ++rank) {
      const double gathered = l.reshard ? 0 : p.layer_params;
      const double states =
          a.layers[rank] * (p.layer_params / shards(l, 3) + gathered + p.layer_states / shards(l, 1));
      const double grads = a.layers[rank] * p.layer_grads / shards(l, 2);
      most = std::max({most, states + a.kept[rank], states + grads + a.kept_later[rank]});
    }
  const bool one = given_.model.moe.num_experts == 0 && l.reshard;
  const double whole = one ? p.layer_params * (1 - 1 / shards(l, 3)) : 0;
  if (most > 0) most += whole + whole_gradients(p, l) + p.external;
  const double wait = first_wait(l, a.first_layers, a.first_forward, a.first_last);
  // A rank's gradients are reduced one after the other. One call for all of them does not take longer.
  const double all = static_cast<double>(given_.model.num_hidden_layers) / static_cast<double>(l.pipeline),
               reduced_once = traffic_seconds(l).reduced_once;
  double end = a.seconds;
  for (size_t rank = 0; rank < a.layers.size(); ++rank)
    end = std::max(end, a.reduces_from[rank] + std::min(1.0, a.layers[rank] / all) * reduced_once);
  return {kRounding * (end + wait), kRounding * most};
}

/// The full backward time of a stage may come at its end.
double SearchParts::least_makespan(const Layout& l, const PipelinePlan& plan) {
  const pipeline::Schedule& s = plan.layout.schedule;
  // Only passes know the time hidden by pairs.
  if (plan.layout.stage_layers.empty() || s.has_pairs()) return 0;
  const TrafficSeconds traffic = traffic_seconds(l);
  if (traffic.reducing + traffic.reducing_last <= 0) return plan.timing.makespan;
  pipeline::StageCosts costs = plan.costs;
  costs.least.assign(s.order.size(), {});
  for (size_t rank = 0; rank < s.order.size(); ++rank)
    for (size_t i = 0; i < s.order[rank].size(); ++i) {
      const pipeline::Action& a = s.order[rank][i];
      const auto stage = static_cast<size_t>(a.stage);
      const double of_layer = traffic.reducing + (a.micro + 1 == s.micros ? traffic.reducing_last : 0);
      costs.least[rank].push_back(completes_gradients(a) ? pipeline::seconds_at(costs, s.order[rank], i) +
                                                               of_layer * plan.layout.stage_layers[stage]
                                                         : 0);
    }
  return kRounding * pipeline::simulate_checked(s, costs).makespan;
}

std::unique_ptr<RankTrials> SearchParts::begin_trial(const Layout& l, double most_seconds) {
  Recipe r = recipe_of(l);
  ++(composes(l) ? composed_ : whole_);
  PipelinePlan pipeline;
  try {
    const auto make = [&] {
      PipelinePlan made = this->pipeline(l, r);
      lower_once(made.layout);
      return made;
    };
    // ZeRO and its shard group do not change it.
    pipeline = l.pipeline > 1 && composes(l) ? pipelines_.get({actions_key_of(l), l.order}, make) : make();
  } catch (const Error& e) {  // no recompute policy fits
    if (l.recompute != RecomputeGranularity::automatic || e.code() != ExitCode::does_not_fit) throw;
    return nullptr;
  }
  const double least = least_makespan(l, pipeline);
  return std::make_unique<RankTrials>(std::move(r), profile_, std::move(pipeline), least, limits_.keep_free,
                                      most_seconds);
}

Trial SearchParts::trial(const Layout& l, double most_seconds) {
  const std::unique_ptr<RankTrials> ranks = begin_trial(l, most_seconds);
  if (!ranks) return {};
  for (size_t i = 0; i < ranks->size(); ++i) ranks->run(i);
  return ranks->result();
}

}  // namespace ltrain
