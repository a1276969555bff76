#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/tensor/parallel_for.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/simulate_checked.h"
#include "runtime/eval/held_out.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/meta_rank.h"
#include "runtime/plan/on_all_cores.h"
#include "runtime/plan/same_calls.h"
#include "runtime/plan/schedule_plan.h"
#include "runtime/plan/site_plan.h"
#include "runtime/plan/sparse_plan.h"
#include "runtime/program/attention_report.h"
#include "runtime/program/experts_report.h"
#include "runtime/program/quantized_matrices.h"
#include "runtime/program/stage_run.h"
#include "runtime/recipe/derived.h"
#include "runtime/recipe/rules/fp8_rules.h"
#include "runtime/telemetry/exposed.h"
#include "runtime/telemetry/trace_file.h"

namespace ltrain {

namespace {

/// Total seconds of `actions`, including the wait for gathered weights.
double seconds_of(const std::vector<ActionTime>& actions) {
  double sum = 0;
  for (const ActionTime& a : actions) sum += a.seconds + a.gathering;
  return sum;
}

/// Parameters of the full model, independent of its layout.
int64_t model_parameters(const ModelConfig& model) {
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(model, store, alone.groups(), {});
  return store.elements();
}

/// Plan::state_bytes, from one layer on one rank.
double state_bytes(Recipe recipe, const MachineProfile& profile) {
  recipe.distillation = {};  // a frozen model does not grow with the model
  recipe.preference.reference = PreferenceReference::precomputed;
  recipe.model.num_hidden_layers = 1;
  recipe.parallel.pipeline = recipe.parallel.virtual_pipeline = 1;
  recipe.parallel.zero_stage = 0;
  MetaRank meta(recipe, profile, {}, mesh_of(recipe, 0), 1);
  const auto& bytes = meta.memory.peak().most_by_kind;
  double sum = 0;
  for (const MemoryKind k : {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
    sum += static_cast<double>(bytes[static_cast<size_t>(k)]);
  return sum / static_cast<double>(meta.program.parameters().elements());
}

/// Bytes sent between experts with the worst routing, relative to even routing. T tokens of a rank give k T
/// token rows. Its experts may receive and return min(k, experts) T rows of each other rank, limited by their
/// capacity. Each level of the all-to-all passes a row once. Rows beyond a row budget are dispatched a third
/// time, in addition to forward and backward.
double worst_over_even(const Recipe& r) {
  const MoeConfig& m = r.model.moe;
  const double ranks = static_cast<double>(r.parallel.expert), k = static_cast<double>(m.top_k),
               local = static_cast<double>(m.num_experts) / ranks,
               near = static_cast<double>(r.parallel.intra_node_experts);
  double back = std::min(k, local);
  if (m.capacity_factor) {  // one rank may use all of it if several ranks have parts of a sample
    const bool inside = mesh_of(r, 0).expert_axes.has(Axis::context);
    back = std::min(back, *m.capacity_factor * k * local / static_cast<double>(m.router_outputs()) *
                              static_cast<double>(inside ? 1 : r.parallel.context));
  }
  const auto leaves = [](double ranks) { return (ranks - 1) / ranks; };
  const double comes = m.row_budget ? 1.5 : 1;
  const double even = 2 * k * (near > 0 ? leaves(near) + leaves(ranks / near) : leaves(ranks));
  return (near > 0 ? 2 : 1) * (comes * k + (ranks - 1) * back) / even;
}

/// Adds both extremes of an MoE model's routing: the arena with even routing, and the maximum of bytes that
/// token rows can send.
void add_routing(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile,
                 const PipelineLayout& layout, int threads) {
  if (recipe.model.moe.num_experts == 0) return;
  ProgramOptions even = program_options(recipe, layout);
  even.dispatch.balanced = true;
  even.dispatch.replicas = 0;  // unnecessary with even routing
  MetaRank meta(even, recipe, profile, mesh_of(recipe, plan.rank), threads, 0);
  meta.train_step();
  plan.even_arena_bytes = meta.memory.peak().arena_bytes;
  if (recipe.parallel.expert == 1 || even.dispatch.gather) return;
  plan.row_budget = recipe.model.moe.row_budget.value_or(0);
  const Mesh mesh = mesh_of(recipe, plan.rank);
  const std::string axis(axis_set_name(long_axes(mesh.expert_axes, [&](Axis a) { return mesh.size(a); })));
  double sent = 0;
  for (const TraceEntry& e : meta.trace.entries())
    if (e.collective == "all_to_all" && e.axis == axis) sent += e.wire_bytes;
  plan.worst_expert_bytes = std::llround(sent * worst_over_even(recipe));
}

/// Adds steps of other kinds on the same rank: bytes, time and memory. Sums over sites that are on their way
/// from one of them to the next overlap with the usual steps between: the clock goes on by these.
void add_other_steps(RankPlan& plan, const PipelineLayout& layout, MetaRank& meta) {
  const OptimizerSettings& o = meta.program.options().optimizer;
  const StepKinds kinds = step_kinds(o);
  const double usual = plan.step_seconds + (layout.stage_layers.empty() ? 0 : seconds_of(plan.actions));
  int64_t last = kinds.usual_step;
  for (const int64_t step : kinds.other_steps) {
    const bool waits = o.diloco.delay > 0 && o.diloco.updates_after(step) >= 0;
    if (waits) meta.compute->clock += usual * static_cast<double>(step - last - 1);
    last = step;
    const bool overlaps = o.diloco.delay > 0;
    const auto now = [&] { return overlaps ? meta.compute->clock : meta.end(); };
    const int64_t wire = meta.wire_bytes();
    const double begin = now();
    meta.train_step(step);
    RankPlan::OtherStep& other = plan.others.emplace_back();
    other.wire_bytes = meta.wire_bytes() - wire;
    other.seconds = now() - begin;
    if (layout.stage_layers.empty()) continue;
    other.passes = meta.program.parameters().estimate(step) == EstimatePass::none ? 1 : 2;
    other.seconds -= seconds_of(meta.program.actions());
  }
}

}  // namespace

PipelinePlan priced_pipeline(const Recipe& recipe, const MachineProfile& profile,
                             const PipelineLayout& layout) {
  PipelinePlan out{layout, {}, {}};
  if (layout.stage_layers.empty()) return out;
  out.costs = pipeline::stage_costs(layer_costs(recipe, profile, layout.recompute),
                                    layout.schedule.rank_of_stage, layout.stage_layers)
                  .costs;
  out.timing = pipeline::simulate(layout.schedule, out.costs);
  return out;
}

namespace {

/// Replaces the pass's wait for gathered weights by `left`, the wait in the pipeline.
void hide_gathers(RankPlan& rank, std::string_view axis, double left) {
  double waited = 0;
  for (const ActionTime& a : rank.actions) waited += a.gathering;
  for (auto& [of, seconds] : rank.exposed)
    if (of == axis) seconds = std::max(0.0, seconds - waited + left);
  std::stable_sort(rank.exposed.begin(), rank.exposed.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
}

}  // namespace

/// place_actions of sites of one kind, whose data ranks have the micro-batches of `pipeline`.
static void place_equal_actions(const std::vector<RankPlan*>& ranks, const Recipe& recipe,
                                PipelinePlan& pipeline) {
  const auto place = [&](const RankPlan& rank) {
    return static_cast<size_t>(mesh_of(recipe, rank.rank).coordinate(Axis::pipeline));
  };
  auto &least = pipeline.costs.least, &pairs = pipeline.costs.pairs,
       &earliest_end = pipeline.costs.earliest_end;
  least.assign(static_cast<size_t>(pipeline.layout.schedule.ranks), {});
  earliest_end = pairs = least;
  for (const RankPlan* planned : ranks) {
    const RankPlan& rank = *planned;
    const auto& order = pipeline.layout.schedule.order.at(place(rank));
    std::vector<double>&seconds = least.at(place(rank)), &pair = pairs.at(place(rank)),
    &end = earliest_end.at(place(rank));
    seconds.resize(rank.actions.size());
    pair.resize(rank.actions.size());
    for (size_t i = 0; i < rank.actions.size(); ++i) {
      const ActionTime& a = rank.actions[i];
      double& of = order.at(i).with_next ? pair[i] : seconds[i];
      of = std::max(of, a.seconds);
      // An action that did not wait in the pass does not wait in the pipeline.
      if (a.gathering <= 0) continue;
      end.resize(rank.actions.size());
      end[i] = std::max(end[i], a.end);
    }
  }
  pipeline.timing = pipeline::simulate_checked(pipeline.layout.schedule, pipeline.costs);
  double other = pipeline.timing.makespan;
  const auto twice = [](const RankPlan* r) {
    return std::ranges::any_of(r->others, [](const RankPlan::OtherStep& s) { return s.passes > 1; });
  };
  if (std::ranges::any_of(ranks, twice)) {
    pipeline::StageCosts gathered = pipeline.costs;  // a step with two passes has waited before the first
    gathered.earliest_end.clear();
    other = pipeline::simulate_checked(pipeline.layout.schedule, gathered).makespan;
  }
  for (RankPlan* rank : ranks) {
    rank->step_seconds += pipeline.timing.makespan;
    for (RankPlan::OtherStep& s : rank->others) s.seconds += s.passes * other;
    hide_gathers(*rank, comm_axis(mesh_of(recipe, rank->rank).shard),
                 pipeline.timing.waited.at(place(*rank)));
  }
}

void place_actions(std::vector<RankPlan>& ranks, const Recipe& recipe, const MachineProfile& profile,
                   PipelinePlan& pipeline) {
  if (pipeline.layout.stage_layers.empty()) return;
  const pipeline::Schedule full = pipeline.layout.schedule;
  PipelinePlan slowest;
  std::map<SiteKind, std::vector<RankPlan*>> kinds;
  for (RankPlan& r : ranks) kinds[site_kind(recipe, profile, mesh_of(recipe, r.rank).site())].push_back(&r);
  for (const auto& [kind, same] : kinds) {
    PipelinePlan part = pipeline;
    if (kind.second != &profile.at(0, mesh_of(recipe, 0).world()))
      part.costs = priced_pipeline(recipe, *kind.second, pipeline.layout).costs;
    if (kind.first < full.micros) part.layout.schedule = first_micros(full, static_cast<int>(kind.first));
    place_equal_actions(same, recipe, part);
    if (slowest.layout.stage_layers.empty() || part.timing.makespan > slowest.timing.makespan)
      slowest = std::move(part);
  }
  pipeline = std::move(slowest);
  pipeline.layout.schedule = full;
}

std::vector<double> activation_limit(const Recipe& recipe, const MachineProfile& profile) {
  if (!recipe.parallel.chooses_schedule() || recipe.parallel.schedule_file) return {};
  Recipe plain = recipe;  // parameters, gradients and optimizer state of a rank hardly depend on the schedule
  plain.parallel.schedule = "1f1b";
  plain.parallel.virtual_pipeline = 1;
  const PipelineLayout layout = pipeline_layout(plain, profile);
  const Mesh first = mesh_of(recipe, 0);
  std::vector<double> limit;
  for (int stage = 0; stage < first.size(Axis::pipeline); ++stage) {
    const RankPlan rank =
        plan_rank(plain, profile, layout, first.at(Axis::pipeline, stage), threads_per_rank(recipe));
    const int64_t others =
        rank.total_bytes - rank.arena.most_by_kind[static_cast<int>(MemoryKind::activations)];
    const int64_t there = device_of(recipe) == DeviceKind::cuda
                              ? profile.device_bytes
                              : host_memory_bytes() / recipe.launch.ranks_on_host;
    limit.push_back(static_cast<double>(std::max<int64_t>(0, there - others)));
  }
  return limit;
}

namespace {

/// Runs a train step, and records the values that do not need its ops.
void plan_step(RankPlan& plan, const PipelineLayout& layout, MetaRank& meta) {
  meta.train_step();
  plan.step_seconds = meta.end();
  if (FrozenModel* frozen = meta.program.frozen_model()) {
    plan.frozen_model = meta.program.options().teacher ? "teacher" : "reference";
    plan.frozen_bytes = frozen->weight_bytes();
    plan.frozen_seconds = frozen->seconds();
  }
  if (layout.stage_layers.empty()) return;  // a single rank does not know when its neighbours send
  plan.actions = meta.program.actions();
  plan.step_seconds -= seconds_of(plan.actions);
}

/// Adds an evaluation. The cost of each batch comes from passes over one and two batches.
void plan_evaluation(RankPlan& plan, const Recipe& recipe, MetaRank& meta) {
  if (recipe.train.eval_interval == 0) {
    if (recipe.train.routing_probe_interval > 0) meta.evaluate_once();  // for its memory
    return;
  }
  const int64_t batches = micro_batches_per_evaluation(recipe);
  const auto pass = [&](int64_t n) {
    const double start = meta.end();
    const int64_t before = meta.wire_bytes();
    const HostBatch any;
    meta.program.evaluate([&] { return n-- > 0 ? &any : nullptr; });
    return std::pair(meta.wire_bytes() - before, meta.end() - start);
  };
  const auto first = pass(1);  // includes the gather of updated weights
  const auto one = pass(1), two = pass(2);
  // Losses of kto need the divergence of the whole set, from a pass of its own.
  const bool twice = trains_preferences(recipe.task) && recipe.preference.estimates_divergence();
  const int64_t sets = static_cast<int64_t>(eval_sets(recipe).size()) * (twice ? 2 : 1);
  plan.eval_wire_bytes =
      first.first - one.first + sets * (one.first + (batches - 1) * (two.first - one.first));
  plan.eval_seconds =
      first.second - one.second +
      static_cast<double>(sets) * (one.second + static_cast<double>(batches - 1) * (two.second - one.second));
}

/// Adds memory. Call it after all passes.
void plan_memory(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile, MetaRank& meta,
                 int threads) {
  if (trains_preferences(recipe.task) && recipe.preference.has_reference()) meta.program.score_pairs({}, {});
  const int site = mesh_of(recipe, plan.rank).site();
  run_smaller_steps(recipe, meta.program, site);
  run_other_precisions(recipe, meta.program, site);
  plan.arena = meta.memory.peak();
  add_external(plan, recipe, profile, meta, threads);
}

}  // namespace

RankPlan compose_rank(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
                      int rank, int threads) {
  return with_repeats(recipe, profile, layout, rank, threads, [&](MetaRank& meta) {
    meta.trace.keep_entries(false);
    RankPlan plan;
    plan.rank = rank;
    plan_step(plan, layout, meta);
    for (const int64_t other : step_kinds(meta.program.options().optimizer).other_steps)
      meta.train_step(other);
    plan_evaluation(plan, recipe, meta);
    plan_memory(plan, recipe, profile, meta, threads);
    RankPlan known;
    known.rank = rank;
    known.step_seconds = plan.step_seconds;
    known.actions = std::move(plan.actions);
    known.total_bytes = plan.total_bytes;
    known.host_bytes = plan.host_bytes;
    return known;
  });
}

namespace {

/// Adds a train step: its time, traffic, waits and ops, and steps of other kinds.
void add_train_step(RankPlan& plan, const PipelineLayout& layout, MetaRank& meta) {
  const int64_t wire_before = meta.wire_bytes();
  const Stream::Waits waits_before = meta.compute->waited();
  plan_step(plan, layout, meta);
  plan.train_wire_bytes = meta.wire_bytes() - wire_before;
  plan.model_flops = meta.trace.model_flops();
  for (auto& [axis, seconds] : exposed_by_axis(meta.compute->waited(), waits_before))
    (axis.empty() ? plan.exposed_offload_seconds : plan.exposed.emplace_back(axis, 0).second) = seconds;
  const size_t entries = meta.trace.entries().size();
  add_other_steps(plan, layout, meta);
  add_ops(plan, meta.trace, entries);
}

}  // namespace

RankPlan plan_rank(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
                   int rank, int threads, bool totals, RankPass pass) {
  const auto planned = [&](MetaRank& meta) {
    RankPlan plan;
    plan.rank = rank;
    add_train_step(plan, layout, meta);
    plan_evaluation(plan, recipe, meta);
    plan_memory(plan, recipe, profile, meta, threads);
    plan.figures = meta.cost.figures();
    if (!totals) return plan;
    add_routing(plan, recipe, profile, layout, threads);
    plan.placement_ops = static_cast<int64_t>(meta.trace.entries().size());
    for (const MetaTrace::Part& p : meta.trace.repeats())
      plan.placement_ops += static_cast<int64_t>(p.last - p.first);
    return plan;
  };
  if (pass == RankPass::repeats) return with_repeats(recipe, profile, layout, rank, threads, planned);
  MetaRank meta(recipe, profile, layout, mesh_of(recipe, rank), threads,
                static_cast<int>(recipe.launch.ranks_on_host));
  return planned(meta);
}

Plan job_of(const Recipe& recipe, const MachineProfile& profile) {
  Plan plan;
  plan.recipe_name = recipe.name;
  plan.device = device_of(recipe);
  plan.device_bytes = plan.device == DeviceKind::cuda ? profile.device_bytes : 0;
  plan.world = static_cast<int>(ranks(recipe));
  plan.ranks_on_host = static_cast<int>(recipe.launch.ranks_on_host);
  plan.threads_per_rank = threads_per_rank(recipe);
  plan.tokens_per_step = tokens_per_step(recipe);
  plan.accumulation = micro_batches_per_step(recipe);
  plan.train_steps = recipe.train.train_steps;
  plan.kinds = step_kinds(optimizer_settings(recipe));
  if (const int64_t every = recipe.train.eval_interval; every > 0)
    plan.evaluations = (plan.train_steps + every - 1) / every;  // the last step always evaluates
  const bool own = profile.device && profile.device->trainer.empty();
  if (plan.device == DeviceKind::cuda && own && profile.device->compute_capability > 0) {
    plan.attention = planned_attention(recipe, static_cast<int>(profile.device->compute_capability));
    plan.experts = experts_report(recipe, static_cast<int>(profile.device->compute_capability));
  }
  plan.profile = profile.source;
  plan.profile_measured = profile.measured;
  plan.profile_built_in = profile.built_in;
  plan.network_bytes_per_second = profile.adapter_bytes_per_second > 0
                                      ? profile.adapter_bytes_per_second * plan.ranks_on_host
                                      : profile.network_bytes_per_second;
  plan.network_given = profile.network_given;
  plan.network_source = profile.network_source;
  plan.links = profile.links;
  plan.host_memory_bytes_per_second = profile.host_memory_bytes_per_second;
  plan.host_memory_source = profile.host_memory_source;
  plan.host_bytes = host_memory_bytes();
  plan.for_this_machine = plan.device == DeviceKind::cpu || profile.of_this_machine;
  const auto& peaks = profile.for_threads(plan.threads_per_rank).peak_flops;
  const std::string type(dtype_name(precision_policy(std::string(to_string(recipe.precision))).compute));
  // A missing type computes as fp32, so it has fp32's price.
  for (const std::string& t : {type, std::string("f32")})
    if (const auto it = peaks.find(t); it != peaks.end() && plan.peak_flops == 0)
      plan.peak_flops = it->second;
  return plan;
}

std::vector<int> ranks_to_plan(const Recipe& recipe, const MachineProfile& profile) {
  std::vector<int> which;
  const Mesh first = mesh_of(recipe, 0);
  for (int stage = 0; stage < first.size(Axis::pipeline); ++stage)
    which.push_back(first.at(Axis::pipeline, stage));
  for (const int rank : ranks_of_other_sites(recipe, profile)) which.push_back(rank);
  if (const int last = first.world() - 1; which.back() != last) which.push_back(last);
  return which;
}

void check_skew(const Recipe& recipe, double skew, bool any_layout) {
  if (skew <= 1) return;
  if (recipe.model.moe.num_experts == 0)
    fail(ExitCode::usage,
         "--skew {}: is of routing to experts, and the model has none (model.moe.num_experts "
         "= 0); leave it out",
         skew);
  if (recipe.parallel.replicated_experts > 0)
    fail(ExitCode::usage,
         "--skew {}: plans with parallel.shadow_experts = {} are of even routing; nearest "
         "valid value: parallel.shadow_experts: 0",
         skew, recipe.parallel.replicated_experts);
  if (recipe.model.moe.selection == Selection::expert_choice)
    fail(ExitCode::usage,
         "--skew {}: with model.moe.router.selection = expert_choice each expert takes as many tokens as "
         "another; leave it out",
         skew);
  if (any_layout) return;
  if (recipe.parallel.expert == 1)
    fail(ExitCode::usage,
         "--skew {}: each rank has all experts (parallel.expert = 1), so that none has more "
         "rows than another; leave it out, or set parallel.expert",
         skew);
  if (skew > static_cast<double>(recipe.parallel.expert))
    fail(ExitCode::usage,
         "--skew {}: is in even shares of parallel.expert = {} ranks, of which one cannot have "
         "more than all; nearest valid value: {}",
         skew, recipe.parallel.expert, recipe.parallel.expert);
}

namespace {

Plan plan_of(const Recipe& recipe, const MachineProfile& profile, std::vector<int> which,
             PipelinePlan pipeline, RankPass pass) {
  const std::map<std::string, Shape> sparse = sparse_matrices(recipe);
  Plan plan = job_of(recipe, profile);
  for (const auto& [name, shape] : sparse) plan.sparse_parameters += shape.elements();
  for (const auto& [name, shape] : quantized_matrices(recipe)) plan.quantized_parameters += shape.elements();
  plan.sparse_from = sparse.empty() ? 0 : recipe.sparsity.at_step;
  if (pipeline.layout.recompute) plan.recompute = describe(*pipeline.layout.recompute);
  plan.smaller = smaller_settings(recipe);
  if (which.empty()) {
    which = ranks_to_plan(recipe, profile);
    plan.stages = mesh_of(recipe, 0).size(Axis::pipeline);
  }
  plan.parameters = model_parameters(recipe.model);
  plan.ranks.resize(which.size());
  on_all_cores(which.size(), [&](size_t i) {
    plan.ranks[i] = plan_rank(recipe, profile, pipeline.layout, which[i], plan.threads_per_rank, true, pass);
  });
  plan.placement_ops = plan.ranks.back().placement_ops;
  if (!sparse.empty()) plan.sparse = sparse_price(plan, recipe, profile.at(which.front(), plan.world));
  if (plan.stages > 0 && plan.world > 1)
    check_same_calls(recipe, profile, pipeline.layout, ranks_to_compare(recipe));
  place_actions(plan.ranks, recipe, profile, pipeline);
  if (recipe.parallel.pipeline > 1) {
    plan.schedule = recipe.parallel.schedule_file.value_or(pipeline.layout.schedule.name);
    plan.pipeline_chunks = pipeline.layout.schedule.chunks;
  }
  plan.overlap = recipe::overlap_text(
      recipe, recipe.parallel.pipeline > 1 ? pipeline.layout.schedule.has_pairs() : plan.accumulation > 1);
  plan.bubble_share = pipeline.timing.bubble_share;
  plan.action_seconds = pipeline.timing.makespan;
  return plan;
}

}  // namespace

Plan make_plan(const Recipe& recipe, const MachineProfile& profile, std::vector<int> which,
               const PipelineLayout* given, RankPass pass) {
  check_optimizer_of(recipe);
  check_fp8(recipe);
  PipelinePlan pipeline = given ? priced_pipeline(recipe, profile, *given) : plan_pipeline(recipe, profile);
  lower_once(pipeline.layout);
  Plan plan = plan_of(recipe, profile, which, pipeline, pass);
  if (plan.stages > 0 || pipeline.layout.update)
    plan.update = planned_update(recipe, profile, pipeline.layout);
  if (plan.sparse.speedup > 0 && plan.other_sparse_steps() > 0) {
    const Recipe other = recipe_of_other_steps(recipe);
    plan.sparse.other_step_seconds =
        plan_of(other, profile, which, priced_pipeline(other, profile, pipeline.layout), pass).step_seconds();
  }
  if (plan.stages > 0) plan_sites(plan, recipe, profile);
  if (plan.stages > 0 && !fits(plan)) plan.state_bytes = state_bytes(recipe, profile);
  if (profile.expert_skew <= 1 || recipe.parallel.expert == 1) return plan;
  MachineProfile at_even = profile;
  at_even.expert_skew = 1;
  const Plan even = plan_of(recipe, at_even, which, priced_pipeline(recipe, at_even, pipeline.layout), pass);
  plan.expert_skew = profile.expert_skew;
  plan.even_step_seconds = even.step_seconds();
  // Total model FLOPs do not depend on the skew, so use the values of even routing.
  for (size_t i = 0; i < plan.ranks.size(); ++i) plan.ranks[i].model_flops = even.ranks[i].model_flops;
  return plan;
}

std::vector<TraceEntry> step_entries(const Recipe& recipe, const MachineProfile& profile, int rank) {
  MetaRank meta(recipe, profile, pipeline_layout(recipe, profile), mesh_of(recipe, rank),
                threads_per_rank(recipe), static_cast<int>(recipe.launch.ranks_on_host));
  meta.train_step();
  return meta.trace.entries();
}

namespace {

/// Runs a part of a step of rank 0 and returns the result of `read`. `entries`: keep trace entries.
template <class Read>
auto of_pass(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout, StepEnd end,
             bool entries, const Read& read) {
  MetaRank meta(recipe, profile, layout, mesh_of(recipe, 0), threads_per_rank(recipe),
                static_cast<int>(recipe.launch.ranks_on_host));
  meta.trace.keep_entries(entries);
  meta.program.end_at(end);
  meta.train_step();
  return read(meta);
}

}  // namespace

std::vector<TraceEntry> pass_entries(const Recipe& recipe, const MachineProfile& profile,
                                     const PipelineLayout& layout, StepEnd end) {
  return of_pass(recipe, profile, layout, end, true,
                 [](const MetaRank& meta) { return meta.trace.entries(); });
}

std::vector<ActionTime> step_actions(const Recipe& recipe, const MachineProfile& profile,
                                     const PipelineLayout& layout) {
  return of_pass(recipe, profile, layout, StepEnd::before_update, false,
                 [](const MetaRank& meta) { return meta.program.actions(); });
}

MemoryUse before_step(const Recipe& recipe, const MachineProfile& profile) {
  return MetaRank(recipe, profile, {}, mesh_of(recipe, 0), threads_per_rank(recipe)).memory.peak();
}

int64_t activation_bytes(const Recipe& recipe, const MachineProfile& profile) {
  LT_CHECK(recipe.parallel.pipeline == 1, "expected a single pipeline rank, got {}",
           recipe.parallel.pipeline);
  return of_pass(recipe, profile, {}, StepEnd::first_micro_batch, false, [](const MetaRank& meta) {
    return meta.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)];
  });
}

std::string plan_trace(const Recipe& recipe, const MachineProfile& profile, int rank) {
  std::vector<TraceSlice> slices;
  const std::vector<TraceEntry> entries = step_entries(recipe, profile, rank);
  for (const TraceEntry& e : entries)
    slices.push_back({e.name, op_class_name(e.cls), e.layer, e.stream, e.start, e.seconds, e.flops, e.bytes,
                      e.wire_bytes});
  return chrome_trace(fmt::format("rank {} (planned)", rank), rank, mesh_of(recipe, rank).world(), 0, slices);
}

}  // namespace ltrain
