#include "runtime/plan/plan.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "kernels/core/device.h"
#include "kernels/core/parallel_for.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/schedule_csv.h"
#include "runtime/data/batch_loader.h"
#include "runtime/launch/transport.h"
#include "runtime/plan/schedule_plan.h"
#include "runtime/plan/sparse_plan.h"
#include "runtime/recipe/rules.h"
#include "runtime/telemetry/trace_file.h"
#include "runtime/train/training_state.h"

namespace ltrain {
namespace {

/// A rank's program on the meta device.
struct MetaRank {
  ProfileCost cost;
  MetaTrace trace;
  GroupSet groups;
  std::unique_ptr<Stream> compute;
  MetaMemory memory, host;
  SlowMemories slow;
  TrainProgram program;

  MetaRank(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
           const Mesh& mesh, int threads, int ranks_on_host = 0)
      : MetaRank(program_options(recipe, layout), recipe, profile, mesh, threads, ranks_on_host) {}
  MetaRank(const ProgramOptions& options, const Recipe& recipe, const MachineProfile& profile,
           const Mesh& mesh, int threads, int ranks_on_host)
      : cost(profile, threads, mesh.world() * threads >= profile.cores, ranks_on_host),
        trace(&cost),
        groups(make_meta_groups(mesh, trace, group_options(options), ranks_on_host)),
        compute(make_meta_stream("compute", trace)),
        memory(trace),
        host(trace),
        slow(trace),
        program(options, {*compute, memory, groups.groups(),
                          device_of(recipe) == DeviceKind::cpu ? nullptr : &host, slow.places()}) {
    trace.clear_entries();
    trace.set_compute(compute.get());
  }

  /// One of those that most of the run's are like.
  void train_step() { train_step(step_kinds(program.options().optimizer).usual_step); }
  void train_step(int64_t step) {
    AdamwArgs args;
    args.step = step;
    program.train_step({}, args, false);
  }
  double end() const { return std::max(compute->clock, groups.clock()); }
  int64_t wire_bytes() const { return groups.groups().wire_bytes(); }
};

}  // namespace

PipelineLayout pipeline_layout(const Recipe& r, const MachineProfile& profile) {
  PipelineLayout layout;
  if (r.parallel.pipeline > 1) {
    SchedulePlan plan = plan_schedule(r, layer_costs(r, profile), activation_limit(r, profile));
    layout.schedule = std::move(plan.schedule);
    layout.stage_layers = std::move(plan.staged.layers);
  }
  if (r.recompute.granularity == "auto") layout.recompute = choose_recompute(r, profile, layout);
  return layout;
}

std::string pack(const PipelineLayout& l) {
  std::string text;
  if (l.recompute)
    text = fmt::format("recompute {} {} {}\n", l.recompute->run, l.recompute->layers,
                       int{l.recompute->tensors.bits});
  if (l.stage_layers.empty()) return text;
  text += l.schedule.name;
  for (int n : l.stage_layers) text += fmt::format(",{}", n);
  return text + "\n" + pipeline::write_schedule_csv(l.schedule);
}

PipelineLayout unpack_pipeline_layout(const std::string& packed) {
  PipelineLayout l;
  std::string rest = packed;
  if (packed.starts_with("recompute ")) {
    int bits = 0;
    std::istringstream line(packed.substr(10, packed.find('\n') - 10));
    l.recompute.emplace();
    line >> l.recompute->run >> l.recompute->layers >> bits;
    l.recompute->tensors.bits = static_cast<uint8_t>(bits);
    rest = packed.substr(packed.find('\n') + 1);
  }
  if (rest.empty()) return l;
  std::istringstream first(rest.substr(0, rest.find('\n')));
  std::string name, number;
  std::getline(first, name, ',');
  while (std::getline(first, number, ',')) l.stage_layers.push_back(std::stoi(number));
  l.schedule = pipeline::read_schedule_csv(rest.substr(rest.find('\n') + 1), "the schedule of rank 0");
  l.schedule.name = name;
  return l;
}

Mesh mesh_of(const Recipe& r, int rank) {
  const Parallel& p = r.parallel;
  Mesh m = recipe::plain_mesh(r, p.data);
  m.rank = rank;
  m.cut_tensor(tensor_mode(p.tensor_mode), static_cast<int>(p.tensor), static_cast<int>(p.tensor_depth));
  const std::string error = p.inside > 0 ? m.split_levels(p.inside) : "";
  LT_CHECK(error.empty(), "levels of {} ranks: {}", p.inside, error);
  const std::string wrong = m.cut_experts(static_cast<int>(p.expert), recipe::experts_apart(r));
  LT_CHECK(wrong.empty(), "parallel.expert: {}", wrong);
  return m;
}

namespace {

SequenceCut sequence_cut(const Recipe& r, const Mesh& mesh) {
  return {r.data.seq_length, mesh.size(Axis::context), mesh.coordinate(Axis::context),
          context_comm(r.parallel.context_comm), static_cast<int>(r.parallel.context_inner)};
}

std::vector<OutsideMemory> outside_memory(const Recipe& r, const MachineProfile& profile, const Mesh& mesh,
                                          int threads, int64_t panel_bytes) {
  std::vector<OutsideMemory> items;
  items.push_back(
      {"process", profile.process_bytes, profile.measured ? "measured by ltrain bench" : "built-in guess"});
  const OutsideMemory loader{"data loader", data::loader_buffer_bytes(loader_options(r, mesh, false)),
                             "formula"};
  if (device_of(r) == DeviceKind::cuda) return {items[0], loader};
  const ProgramOptions o = program_options(r);
  const SequenceCut cut = sequence_cut(r, mesh);
  const Positions queries = cut.exchanged_rows_of(cut.rank);
  const Positions keys = cut.comm == ContextComm::all_gather ? Positions(cut.seq) : queries;
  items.push_back({"attention scratch",
                   attention_scratch_bytes(queries, keys, o.model.head_dim, o.precision.compute) * threads,
                   "formula"});
  if (panel_bytes > 0) items.push_back({"panels of halves", panel_bytes, "formula"});
  items.push_back(loader);
  return items;
}

/// What a card's memory holds beside the arena. No figure but the scratch was measured: they are round
/// numbers that leave room.
std::vector<OutsideMemory> outside_cuda(size_t groups) {
  constexpr auto gpu = DeviceKind::cuda;
  const char* guess = "NOT MEASURED: assumed, until scripts/gpu-check.sh has run";
  std::vector<OutsideMemory> items{
      {"context, kernels", int64_t{600} << 20, guess, gpu},
      {"stream scratch", stream_scratch_bytes(gpu), "exact: cuBLASLt's workspace is in it", gpu},
      {"cuBLASLt", int64_t{64} << 20, guess, gpu},
  };
  if (groups > 0) items.push_back({"NCCL", static_cast<int64_t>(groups) * (int64_t{256} << 20), guess, gpu});
  return items;
}

/// What groups of these ranks keep for data on its way. A shared segment counts on each of its ranks, as it
/// does in a process's resident memory.
void add_group_memory(RankPlan& plan, const std::vector<std::vector<int>>& groups, int ranks_on_host) {
  std::map<Transport, int64_t> bytes;
  for (const std::vector<int>& ranks : groups) {
    const Transport t = planned_transport(ranks, ranks_on_host);
    bytes[t] += transport_scratch_bytes(t, static_cast<int>(ranks.size()));
  }
  for (const auto& [t, n] : bytes)
    plan.outside.push_back(
        {t == Transport::shm ? "shared memory of groups" : "gloo parts in flight", n, "formula"});
}

/// The items outside of the arenas, and the sums of everything.
void add_outside(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile, MetaRank& meta,
                 int threads) {
  const bool cuda = device_of(recipe) == DeviceKind::cuda;
  const Mesh mesh = mesh_of(recipe, plan.rank);
  plan.outside = outside_memory(recipe, profile, mesh, threads, meta.trace.panel_bytes());
  if (saves_at_all(recipe)) {
    const int64_t bytes = CheckpointWriter::staging_bytes(state_slices(meta.program.parameters()));
    if (cuda) {
      checkpoint_staging(meta.host, bytes);
    } else {
      plan.outside.push_back({"checkpoint staging", bytes, "formula"});
    }
  }
  plan.offloaded = meta.program.offloaded();
  add_offloaded(plan, cuda);
  if (const int64_t open = meta.program.parameters().open_state_bytes())
    plan.outside.push_back({"8-bit moments as floats", open, "formula"});  // at a checkpoint
  std::vector<std::vector<int>> groups = meta.groups.members();
  if (cuda) {
    for (OutsideMemory& item : outside_cuda(groups.size())) plan.outside.push_back(std::move(item));
    groups.clear();  // theirs is on the card
  }
  if (ranks(recipe) > 1) groups.push_back(mesh.group(kAllAxes));  // of the checkpoints
  add_group_memory(plan, groups, static_cast<int>(recipe.launch.ranks_on_host));
  plan.staging_bytes = meta.host.peak().arena_bytes;
  plan.total_bytes = plan.arena.arena_bytes;
  plan.host_bytes = plan.staging_bytes;
  for (const OutsideMemory& o : plan.outside) {
    if (!cuda || o.where == DeviceKind::cuda) plan.total_bytes += o.bytes;
    if (o.where == DeviceKind::cpu) plan.host_bytes += o.bytes;
  }
  if (!cuda) plan.host_bytes = plan.total_bytes;
}

}  // namespace

double Plan::step_seconds() const {
  double s = 0;
  for (const RankPlan& r : ranks) s = std::max(s, r.step_seconds);
  return s;
}

double Plan::total_seconds() const {
  double evaluation = 0;
  for (const RankPlan& r : ranks) evaluation = std::max(evaluation, r.eval_seconds);
  double other = 0;
  for (const RankPlan& r : ranks) other = std::max(other, r.other_seconds);
  const int64_t others = kinds.others(train_steps);
  return step_seconds() * static_cast<double>(train_steps - others) + other * static_cast<double>(others) +
         evaluation * static_cast<double>(evaluations);
}

double Plan::mfu() const {
  const double s = step_seconds();
  return s > 0 && peak_flops > 0 && !ranks.empty() ? ranks[0].flops / (s * peak_flops) : 0;
}

OptimizerSettings optimizer_settings(const Recipe& r) {
  const Optimizer& from = r.optimizer;
  OptimizerSettings o;
  o.rule = update_rule(from.kind).value();
  o.momentum = from.sgd_momentum;
  o.nesterov = from.sgd_nesterov;
  o.lion_beta1 = from.lion_beta1;
  o.lion_beta2 = from.lion_beta2;
  o.muon_momentum = from.muon_momentum;
  o.muon_steps = static_cast<int>(from.muon_num_ns_steps);
  o.muon_lr_scale = from.uses("muon") ? from.muon_lr / from.lr : 1;
  o.muon_match_rms = from.muon_scale == "match_rms_adamw";
  o.freeze_step = from.freeze_step;
  o.lamb_limits = from.lamb_limits;
  o.hessian_interval = from.hessian_interval;
  o.sophia_gamma = from.sophia_gamma;
  o.hessian_radius = from.hessian_radius;
  o.freeze_routers = r.train.freeze_router;
  o.router_warmup = r.train.router_warmup_steps;
  o.adafactor_decay = from.adafactor_decay_rate;
  o.adafactor_eps = from.adafactor_eps;
  o.adafactor_threshold = from.adafactor_clip_threshold;
  for (const ParameterGroup& g : from.groups) {
    OptimizerGroup group{g.match, {}, g.lr.value_or(from.lr) / from.lr, g.weight_decay};
    if (g.kind) group.rule = update_rule(*g.kind);
    o.groups.push_back(std::move(group));
  }
  o.sparsity = r.sparsity;
  return o;
}

/// A pattern that matches nothing is a mistake.
static void check_optimizer_of(const Recipe& r) {
  if (r.optimizer.uses("adamw8bit") && device_of(r) == DeviceKind::cuda)
    fail(ExitCode::usage,
         "optimizer: adamw8bit: saves its moments through memory of the host, which this build does for the "
         "CPU "
         "alone; nearest valid value: adamw, or device: cpu");
  if (r.optimizer.groups.empty()) return;
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(r.model, store, alone.groups(), {});
  for (const ParameterGroup& g : r.optimizer.groups) {
    bool found = false;
    for (int id = 0; id < store.count(); ++id) found = found || name_matches(g.match, store.spec(id).name);
    if (found) continue;
    fail(ExitCode::usage,
         "optimizer.groups: match: {} matches no parameter; names are such as {}, {} and {}, and * stands "
         "for any "
         "characters",
         g.match, store.spec(0).name, store.spec(store.count() / 2).name, store.spec(store.count() - 1).name);
  }
}

DispatchOptions dispatch_options(const Recipe& r) {
  return {r.parallel.expert_dispatch == "all_gather", static_cast<int>(r.parallel.shadow_experts),
          static_cast<int>(r.parallel.expert_chunks)};
}

ProgramOptions program_options(const Recipe& r, const PipelineLayout& layout) {
  ProgramOptions o;
  o.model = r.model;
  o.precision = precision_policy(std::string(to_string(r.precision)));
  if (r.optimizer.state_dtype == "bf16") o.precision.state = DType::bf16;
  if (!r.optimizer.master_weights) o.precision.master = o.precision.compute;
  if (r.offload.optimizer.on()) o.offload.fraction = r.offload.optimizer.fraction;
  if (r.offload.params.on()) o.offload.params = r.offload.params.fraction;
  o.activations = activation_offload(r);
  o.ema_decay = r.train.ema_decay;
  o.reduce_bf16 = r.parallel.grad_reduce_dtype == "bf16";
  o.reduce_int8 = r.parallel.grad_reduce_dtype == "int8";
  o.zero_stage = static_cast<int>(r.parallel.zero_stage);
  o.sequence_parallel = r.parallel.sequence_parallel;
  o.expert_tensor = !recipe::experts_apart(r);
  o.dispatch = dispatch_options(r);
  o.near_experts = static_cast<int>(r.parallel.near_experts);
  o.context_comm = context_comm(r.parallel.context_comm);
  o.context_inner = static_cast<int>(r.parallel.context_inner);
  o.documents = r.data.reset_attention_mask;
  o.position_ids = r.data.reset_position_ids;
  o.micro_batch = r.train.micro_batch_size;
  o.seq_length = r.data.seq_length;
  o.accumulation = micro_batches_per_step(r);
  o.seed = static_cast<uint64_t>(r.seed);
  o.clip_grad = r.train.clip_grad;
  o.skip_grad_norm = r.train.skip_grad_norm;
  o.stop_loss = r.train.stop_loss;
  if (r.precision == Precision::fp16) o.loss_scale = r.loss_scale.settings;
  o.decay_embeddings = r.optimizer.decay_embeddings;
  o.optimizer = optimizer_settings(r);
  o.recompute = layout.recompute ? *layout.recompute : recompute_options(r);
  o.schedule = layout.schedule;
  o.stage_layers = layout.stage_layers;
  o.cuda_graphs = r.cuda_graphs && device_of(r) == DeviceKind::cuda;
  return o;
}

data::Packing packing(const Recipe& r) {
  data::Packing p;
  p.attention_mask = r.data.reset_attention_mask;
  p.position_ids = r.data.reset_position_ids;
  p.mask_loss = r.data.eod_mask_loss;
  p.eod = tokenizer_vocab_size(r.data.tokenizer.kind) - 1;  // both tokenizers end with it
  return p;
}

data::LoaderOptions loader_options(const Recipe& r, const Mesh& mesh, bool eval) {
  data::LoaderOptions o;
  for (const DataSource& s : eval ? r.data.eval : r.data.train) o.sources.push_back({s.path, s.weight});
  o.seq_length = r.data.seq_length;
  o.micro_batch = r.train.micro_batch_size;
  // With a growing batch a step of the loader is one micro-batch of every rank: the samples are in the same
  // order.
  const bool grows = r.train.batch_ramp.start > 0 && !eval;
  o.global_batch = grows ? o.micro_batch * mesh.size(kDataAxes) : r.train.global_batch_size;
  o.seed = static_cast<uint64_t>(r.seed);
  o.dp_rank = mesh.place_in(kDataAxes);
  o.dp_size = mesh.size(kDataAxes);
  o.vocab_size = r.model.vocab_size;
  o.rows = sequence_cut(r, mesh).rows();
  o.packing = packing(r);
  o.eval = eval;
  if (eval) o.eval_samples = r.train.eval_steps * r.train.global_batch_size;
  return o;
}

int threads_per_rank(const Recipe& r) {
  if (r.launch.threads_per_rank > 0) return static_cast<int>(r.launch.threads_per_rank);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, cores / static_cast<int>(std::max<int64_t>(1, r.launch.ranks_on_host)));
}

/// Of the whole model, however it is cut.
static int64_t model_parameters(const ModelConfig& model) {
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(model, store, alone.groups(), {});
  return store.elements();
}

/// From the first action of a step to the last, over all stages.
static double pipeline_seconds(const Recipe& recipe, const MachineProfile& profile,
                               const PipelineLayout& layout) {
  const pipeline::StagedCosts staged =
      pipeline::stage_costs(layer_costs(recipe, profile), layout.schedule.rank_of_stage, layout.stage_layers);
  return pipeline::simulate(layout.schedule, staged.costs).makespan;
}

std::vector<double> activation_limit(const Recipe& recipe, const MachineProfile& profile) {
  if (recipe.parallel.schedule != "auto" || recipe.parallel.schedule_file) return {};
  Recipe plain =
      recipe;  // parameters, gradients and optimizer of a rank are much the same under every schedule
  plain.parallel.schedule = "1f1b";
  plain.parallel.virtual_pipeline = 1;
  const PipelineLayout layout = pipeline_layout(plain, profile);
  const Mesh first = mesh_of(recipe, 0);
  std::vector<double> limit;
  for (int stage = 0; stage < first.size(Axis::pipeline); ++stage) {
    const RankPlan rank =
        plan_rank(plain, profile, layout, first.at(Axis::pipeline, stage), threads_per_rank(recipe), nullptr);
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

/// What routing that is as uneven as it can be sends between experts, over what even routing does: T tokens
/// of a rank make k T rows, and its experts may get, and give back, min(k, experts) T of each other rank, as
/// far as their capacity goes. Each level of the all-to-all passes a row once.
double worst_over_even(const Recipe& r) {
  const MoeConfig& m = r.model.moe;
  const double ranks = static_cast<double>(r.parallel.expert), k = static_cast<double>(m.top_k),
               local = static_cast<double>(m.num_experts) / ranks,
               near = static_cast<double>(r.parallel.near_experts);
  double back = std::min(k, local);
  if (m.capacity_factor) back = std::min(back, *m.capacity_factor * k / ranks);
  const auto leaves = [](double ranks) { return (ranks - 1) / ranks; };
  const double even = 2 * k * (near > 0 ? leaves(near) + leaves(ranks / near) : leaves(ranks));
  return (near > 0 ? 2 : 1) * (k + (ranks - 1) * back) / even;
}

/// Both sides of a mixture's routing: what the arena would be for even routing, and the most that rows can
/// send.
void add_routing(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile,
                 const PipelineLayout& layout, int threads) {
  if (recipe.model.moe.num_experts == 0) return;
  ProgramOptions even = program_options(recipe, layout);
  even.dispatch.balanced = true;
  even.dispatch.shadows = 0;  // which even routing has no use for
  MetaRank meta(even, recipe, profile, mesh_of(recipe, plan.rank), threads, 0);
  meta.train_step();
  plan.even_arena_bytes = meta.memory.peak().arena_bytes;
  if (recipe.parallel.expert == 1 || even.dispatch.gather) return;
  const Mesh mesh = mesh_of(recipe, plan.rank);
  const std::string axis(axis_set_name(long_axes(mesh.expert_axes, [&](Axis a) { return mesh.size(a); })));
  double sent = 0;
  for (const TraceEntry& e : meta.trace.entries())
    if (e.collective == "all_to_all" && e.axis == axis) sent += e.wire_bytes;
  plan.worst_expert_bytes = std::llround(sent * worst_over_even(recipe));
}

}  // namespace

/// A step of the other kind, on the same rank: what it sends and takes, and its memory.
static void add_other_step(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile,
                           const PipelineLayout& layout, MetaRank& meta) {
  const StepKinds kinds = step_kinds(meta.program.options().optimizer);
  if (kinds.other_step == 0) return;
  const int64_t wire = meta.wire_bytes();
  const double begin = meta.end();
  meta.train_step(kinds.other_step);
  plan.other_wire_bytes = meta.wire_bytes() - wire;
  plan.other_seconds = meta.end() - begin;
  if (layout.stage_layers.empty()) return;
  const double once = pipeline_seconds(recipe, profile, layout), now = meta.program.action_seconds();
  const bool twice = meta.program.parameters().estimates(kinds.other_step);
  plan.other_seconds += (twice ? 2 : 1) * once - now;
}

RankPlan plan_rank(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
                   int rank, int threads, Plan* totals) {
  const int ranks_on_host = static_cast<int>(recipe.launch.ranks_on_host);
  MetaRank meta(recipe, profile, layout, mesh_of(recipe, rank), threads, ranks_on_host);
  RankPlan plan;
  plan.rank = rank;
  const int64_t wire_before = meta.wire_bytes();
  meta.train_step();
  plan.train_wire_bytes = meta.wire_bytes() - wire_before;
  plan.flops = meta.trace.flops();
  plan.step_seconds = meta.end();
  if (!layout.stage_layers.empty())  // a rank alone does not know when its neighbours send
    plan.step_seconds += pipeline_seconds(recipe, profile, layout) - meta.program.action_seconds();
  plan.exposed_comm_seconds = meta.trace.wait_seconds("compute");
  const auto entries = static_cast<std::ptrdiff_t>(meta.trace.entries().size());

  std::map<std::pair<std::string, std::string>, CollectivePlan> collectives;
  std::map<std::string, OpPlan> ops;
  add_other_step(plan, recipe, profile, layout, meta);
  for (auto entry = meta.trace.entries().begin(); entry != meta.trace.entries().begin() + entries; ++entry) {
    const TraceEntry& e = *entry;
    if (e.cls == OpClass::collective) {
      CollectivePlan& c = collectives[{e.axis, e.collective}];
      c.axis = e.axis;
      c.op = e.collective;
      ++c.calls;
      c.bytes += static_cast<int64_t>(e.bytes);
      c.wire_bytes += static_cast<int64_t>(e.wire_bytes);
      c.network_bytes += std::llround(e.network_bytes);
      c.seconds += e.seconds;
    }
    OpPlan& o = ops[e.name];
    o.name = e.name;
    ++o.calls;
    o.flops += e.flops;
    o.bytes += e.bytes;
    o.seconds += e.seconds;
  }
  for (auto& [key, c] : collectives) plan.collectives.push_back(c);
  for (auto& [key, o] : ops) plan.ops.push_back(o);
  std::stable_sort(plan.ops.begin(), plan.ops.end(),
                   [](const OpPlan& a, const OpPlan& b) { return a.seconds > b.seconds; });

  if (recipe.train.eval_interval > 0) {
    // What comes with each batch, from passes over one and over two of them.
    const int64_t batches = recipe.train.eval_steps * micro_batches_per_step(recipe);
    const auto pass = [&](int64_t n) {
      const double start = meta.end();
      const int64_t before = meta.wire_bytes();
      const HostBatch any;
      meta.program.evaluate([&] { return n-- > 0 ? &any : nullptr; });
      return std::pair(meta.wire_bytes() - before, meta.end() - start);
    };
    const auto one = pass(1), two = pass(2);
    plan.eval_wire_bytes = one.first + (batches - 1) * (two.first - one.first);
    plan.eval_seconds = one.second + static_cast<double>(batches - 1) * (two.second - one.second);
  }
  plan.arena = meta.memory.peak();
  add_outside(plan, recipe, profile, meta, threads);
  if (totals) {
    add_routing(plan, recipe, profile, layout, threads);
    totals->parameters = model_parameters(recipe.model);
    totals->placement_ops = static_cast<int64_t>(meta.trace.entries().size());
  }
  return plan;
}

Plan make_plan(const Recipe& recipe, const MachineProfile& profile, std::vector<int> which,
               const PipelineLayout* given) {
  check_optimizer_of(recipe);
  const std::map<std::string, Shape> sparse = sparse_matrices(recipe);
  const PipelineLayout layout = given ? *given : pipeline_layout(recipe, profile);
  Plan plan;
  plan.recipe_name = recipe.name;
  for (const auto& [name, shape] : sparse) plan.sparse_parameters += shape.elements();
  plan.sparse_from = sparse.empty() ? 0 : recipe.sparsity.at_step;
  plan.device = device_of(recipe);
  plan.device_bytes = plan.device == DeviceKind::cuda ? profile.device_bytes : 0;
  plan.world = static_cast<int>(ranks(recipe));
  plan.ranks_on_host = static_cast<int>(recipe.launch.ranks_on_host);
  plan.threads_per_rank = threads_per_rank(recipe);
  plan.tokens_per_step = tokens_per_step(recipe);
  if (layout.recompute) plan.recompute = describe(*layout.recompute);
  plan.accumulation = micro_batches_per_step(recipe);
  plan.train_steps = recipe.train.train_steps;
  plan.kinds = step_kinds(optimizer_settings(recipe));
  if (const int64_t every = recipe.train.eval_interval; every > 0)
    plan.evaluations = (plan.train_steps + every - 1) / every;  // the last step evaluates, whichever it is
  plan.profile = profile.source;
  plan.profile_measured = profile.measured;
  plan.profile_datasheet = profile.datasheet;
  plan.network_bytes_per_second = profile.network_bytes_per_second;
  plan.network_given = profile.network_given;
  plan.host_bytes = host_memory_bytes();
  const auto& peaks = profile.for_threads(plan.threads_per_rank).peak_flops;
  const std::string type(dtype_name(precision_policy(std::string(to_string(recipe.precision))).compute));
  if (auto it = peaks.find(type); it != peaks.end()) plan.peak_flops = it->second;
  // A profile from before fp16: on the CPU its products are those of fp32.
  if (auto it = peaks.find("f32"); type == "f16" && plan.peak_flops == 0 && it != peaks.end())
    plan.peak_flops = it->second;
  if (which.empty()) {
    const Mesh first = mesh_of(recipe, 0);
    for (int stage = 0; stage < first.size(Axis::pipeline); ++stage)
      which.push_back(first.at(Axis::pipeline, stage));
    if (plan.world > 1 && which.back() != plan.world - 1) which.push_back(plan.world - 1);
  }
  for (int rank : which)
    plan.ranks.push_back(plan_rank(recipe, profile, layout, rank, plan.threads_per_rank, &plan));
  return plan;
}

int64_t host_memory_bytes() {
  struct sysinfo info {};
  int64_t bytes = sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : 0;
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(path);
    int64_t limit = 0;
    if (in >> limit && limit > 0 && limit < bytes) bytes = limit;
  }
  return bytes;
}

void check_memory(const Plan& plan) {
  const auto largest = [&](int64_t RankPlan::*bytes) {
    return *std::max_element(plan.ranks.begin(), plan.ranks.end(),
                             [&](const RankPlan& a, const RankPlan& b) { return a.*bytes < b.*bytes; });
  };
  const std::string help = fmt::format(
      "what would help: a smaller train.micro_batch_size (now with {} accumulation steps) or "
      "data.seq_length, "
      "parallel.zero_stage: 1, precision: bf16, a smaller model, or fewer ranks a host; --force starts "
      "anyway",
      plan.accumulation);
  constexpr double mib = 1048576.0;
  if (const RankPlan r = largest(&RankPlan::total_bytes);
      plan.device != DeviceKind::cpu && plan.device_bytes > 0 && r.total_bytes > plan.device_bytes)
    fail(ExitCode::usage,
         "the plan exceeds the GPU's memory: a rank needs {:.1f} MiB, a card has {:.1f} MiB\n{}{}",
         r.total_bytes / mib, plan.device_bytes / mib, memory_text(r), help);
  const RankPlan r = largest(&RankPlan::host_bytes);
  if (plan.host_bytes == 0 || r.host_bytes * plan.ranks_on_host <= plan.host_bytes) return;
  fail(
      ExitCode::usage,
      "the plan exceeds this host's memory: {} ranks of {:.1f} MiB need {:.1f} MiB, the host has {:.1f} MiB\n"
      "{}{}",
      plan.ranks_on_host, r.host_bytes / mib, r.host_bytes * plan.ranks_on_host / mib, plan.host_bytes / mib,
      memory_text(r), help);
}

std::vector<TraceEntry> step_entries(const Recipe& recipe, const MachineProfile& profile, int rank) {
  MetaRank meta(recipe, profile, pipeline_layout(recipe, profile), mesh_of(recipe, rank),
                threads_per_rank(recipe), static_cast<int>(recipe.launch.ranks_on_host));
  meta.train_step();
  return meta.trace.entries();
}

int64_t activation_bytes(const Recipe& recipe, const MachineProfile& profile) {
  LT_CHECK(recipe.parallel.pipeline == 1, "the activations of {} stages", recipe.parallel.pipeline);
  MetaRank meta(recipe, profile, {}, mesh_of(recipe, 0), 1);
  meta.train_step();
  return meta.memory.peak().most_by_kind[static_cast<int>(MemoryKind::activations)];
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
