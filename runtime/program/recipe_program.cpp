#include "runtime/program/recipe_program.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "base/printable.h"
#include "kernels/matmul/sparse_gemm.h"
#include "models/moe/expert_adapters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/schedule_csv.h"
#include "runtime/data/batch_loader.h"
#include "runtime/launch/cgroup.h"
#include "runtime/recipe/derived.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {
namespace {

int64_t stage_layers(const Recipe& r) {
  const int64_t stages = r.parallel.pipeline * std::max<int64_t>(1, r.parallel.virtual_pipeline);
  return (r.model.num_hidden_layers + stages - 1) / stages;
}

BlockTensorSet module_tensors(RecomputeModule module) {
  using enum BlockTensor;
  switch (module) {
    case RecomputeModule::core_attn:
      return set_of({attention});
    case RecomputeModule::layernorm:
      return set_of({attention_norm, mlp_norm});
    case RecomputeModule::mlp:
    case RecomputeModule::moe:
      return set_of({mlp_hidden, mlp_activation});
    case RecomputeModule::mlp_act:
    case RecomputeModule::moe_act:
      return set_of({mlp_activation});
  }
  return {};
}

}  // namespace

void lower_once(PipelineLayout& l) {
  if (!l.stage_layers.empty() && !l.programs) l.programs = pipeline::lower_all(l.schedule);
}

bool layout_is_planned(const Recipe& r) {
  return r.parallel.pipeline > 1 || r.recompute.granularity == RecomputeGranularity::automatic ||
         chooses_update(r);
}

bool chooses_update(const Recipe& r) {
  return r.offload.update == OffloadUpdate::automatic && device_of(r) == DeviceKind::cuda;
}

std::string pack(const PipelineLayout& l) {
  std::string text;
  if (l.update)
    text = fmt::format("update {} {} {}\n", int{l.update->host}, l.update->device_seconds,
                       l.update->host_seconds);
  if (l.offload)
    text += fmt::format("offload {} {} {}\n", static_cast<int>(l.offload->optimizer),
                        static_cast<int>(l.offload->params), static_cast<int>(l.offload->activations));
  if (l.recompute)
    text += fmt::format("recompute {} {} {}\n", l.recompute->run, l.recompute->layers,
                        int{l.recompute->tensors.bits});
  if (l.stage_layers.empty()) return text;
  text += l.schedule.name;
  for (int n : l.stage_layers) text += fmt::format(",{}", n);
  return text + "\n" + pipeline::write_schedule_csv(l.schedule);
}

PipelineLayout unpack_pipeline_layout(const std::string& packed) {
  PipelineLayout l;
  std::string rest = packed;
  const auto take = [&rest](std::string_view word) -> std::optional<std::istringstream> {
    if (!rest.starts_with(word)) return std::nullopt;
    const std::string line = rest.substr(word.size(), rest.find('\n') - word.size());
    rest.erase(0, rest.find('\n') + 1);
    return std::istringstream(line);
  };
  if (auto line = take("update ")) {
    l.update.emplace().automatic = true;
    *line >> l.update->host >> l.update->device_seconds >> l.update->host_seconds;
  }
  if (auto line = take("offload ")) {
    int optimizer = 0, params = 0, activations = 0;
    *line >> optimizer >> params >> activations;
    l.offload = OffloadDevices{static_cast<OffloadDevice>(optimizer), static_cast<OffloadDevice>(params),
                               static_cast<OffloadDevice>(activations)};
  }
  if (auto line = take("recompute ")) {
    int bits = 0;
    l.recompute.emplace();
    *line >> l.recompute->run >> l.recompute->layers >> bits;
    l.recompute->tensors.bits = static_cast<uint16_t>(bits);
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
  m.cut_tensor(tensor_mode(to_string(p.tensor_mode)), static_cast<int>(p.tensor),
               static_cast<int>(p.tensor_depth));
  const std::string error = p.shard_ranks > 0 ? m.split_levels(p.shard_ranks) : "";
  LT_CHECK(error.empty(), "expected data ranks to split into groups of parallel.shard_ranks = {}, got: {}",
           p.shard_ranks, error);
  const std::string wrong = m.cut_experts(static_cast<int>(p.expert), recipe::experts_apart(r));
  LT_CHECK(wrong.empty(), "expected parallel.expert = {} to fit the mesh, got: {}", p.expert, wrong);
  return m;
}

ContextSharding context_sharding(const Recipe& r, const Mesh& mesh) {
  return {r.data.seq_length, mesh.size(Axis::context), mesh.coordinate(Axis::context),
          r.parallel.context_comm, static_cast<int>(r.parallel.context_inner)};
}

std::optional<Code> gradient_code(const Recipe& r) {
  switch (r.parallel.grad_reduce_dtype) {
    case GradReduceDtype::int8:
      return Code::int8;
    case GradReduceDtype::sign:
      return Code::sign;
    default:
      return {};
  }
}

OptimizerSettings optimizer_settings(const Recipe& r) {
  const OptimizerKeys& from = r.optimizer;
  OptimizerSettings o;
  static_cast<OptimizerHyperparameters&>(o) = from;
  o.rule = from.kind;
  o.muon_lr_scale = from.uses(UpdateRule::muon) ? from.muon_lr / from.lr : 1;
  o.freeze_routers = r.train.freeze_router;
  o.router_warmup = r.train.router_warmup_steps;
  for (const ParameterGroup& g : from.groups) {
    OptimizerGroup group{.match = g.match,
                         .rule = {},
                         .lr_scale = g.lr.value_or(from.lr) / from.lr,
                         .weight_decay = g.weight_decay};
    group.rule = g.kind;
    o.groups.push_back(std::move(group));
  }
  o.frozen = from.frozen;
  o.trained = r.model.lora.trained();
  o.sparsity = r.sparsity;
  o.sparsity.train_steps = r.train.train_steps;
  o.sparsity.skip_zeros = device_of(r) == DeviceKind::cpu && o.sparsity.kept_share() < kDenseShare;
  o.diloco = r.diloco;
  o.quantization = r.quantization;
  return o;
}

/// Fails if an entry of lora.target_modules or lora.modules_to_save stands for no module.
static void check_modules(const ModelConfig& model, const ParameterStore& store) {
  const LoraConfig& lora = model.lora;
  std::set<std::string> last;
  const auto layer_of_experts = [&](const std::string& entry) {
    for (int64_t i = 0; i < model.num_hidden_layers; ++i)
      if (named_experts(model, i, entry).any()) return true;
    return false;
  };
  for (int id = 0; id < store.count(); ++id) {
    std::string_view module = module_of(store.spec(id).name);
    if (store.spec(id).adapter) last.emplace(module_of(module).substr(module_of(module).rfind('.') + 1));
  }
  if (HfTensorLayout hf = model.family->hf_layout; model.moe.num_experts > 0 && !hf.stacked_experts)
    last.insert({hf.expert_gate, hf.expert_up, hf.expert_down});
  const auto check = [&](const std::vector<std::string>& entries, const char* key, bool adapters) {
    for (const std::string& entry : entries) {
      bool found = adapters && (entry == kAllLinear || layer_of_experts(entry));
      for (int id = 0; id < store.count() && !found; ++id) {
        std::string_view module = module_of(store.spec(id).name);
        if (store.spec(id).adapter != adapters) continue;
        found = LoraConfig::names_module(entry, adapters ? module_of(module) : module);
      }
      if (!found)
        fail(ExitCode::usage, "{}: {} stands for no {} of the model; such are {}", key, entry,
             adapters ? "linear layer that can have an adapter" : "module",
             adapters ? fmt::format("{}", fmt::join(last, ", ")) : store.spec(0).name);
    }
  };
  check(lora.target_modules, "lora.target_modules", true);
  check(lora.modules_to_save, "lora.modules_to_save", false);
}

/// Fails if an entry of lora.rank_pattern or lora.alpha_pattern stands for no module with an adapter.
static void check_patterns(const ModelConfig& model, const ParameterStore& store) {
  const LoraConfig& lora = model.lora;
  const auto check = [&](const auto& pattern, const char* key) {
    for (const auto& [entry, value] : pattern) {
      bool found = false;
      for (int64_t i = 0; i < model.num_hidden_layers && !found; ++i)
        found = named_experts(model, i).any() && named_experts(model, i, entry).any();
      for (int id = 0; id < store.count() && !found; ++id)
        found = store.spec(id).adapter &&
                LoraConfig::names_module(entry, module_of(module_of(store.spec(id).name)));
      if (!found)
        fail(ExitCode::usage,
             "{}: {} stands for no module with an adapter; lora.target_modules names these: {}", key,
             printable(entry), fmt::join(lora.target_modules, ", "));
    }
  };
  check(lora.rank_pattern, "lora.rank_pattern");
  check(lora.alpha_pattern, "lora.alpha_pattern");
}

void check_optimizer_of(const Recipe& r) {
  if (r.optimizer.groups.empty() && r.optimizer.frozen.empty() && !r.model.lora.on()) return;
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(r.model, store, alone.groups(), {});
  if (r.model.lora.on()) {
    ModelConfig all = r.model;
    all.lora.target_modules = {std::string(kAllLinear)};
    ParameterStore with_all;
    const Decoder adapted(all, with_all, alone.groups(), {});
    check_modules(r.model, with_all);
    check_patterns(r.model, store);
  }
  const auto require_match = [&](const std::string& pattern, const char* key) {
    for (int id = 0; id < store.count(); ++id)
      if (name_matches(pattern, store.spec(id).name)) return;
    fail(ExitCode::usage,
         "{}{} matches no parameter; names are such as {}, {} and {}, and * stands for any characters", key,
         pattern, store.spec(0).name, store.spec(store.count() / 2).name, store.spec(store.count() - 1).name);
  };
  for (const ParameterGroup& g : r.optimizer.groups) require_match(g.match, "optimizer.groups: match: ");
  for (const std::string& pattern : r.optimizer.frozen) require_match(pattern, "optimizer.frozen: ");
  const OptimizerSettings settings = optimizer_settings(r);
  for (int id = 0; id < store.count(); ++id)
    if (store.rule_with(id, settings).trains()) return;
  fail(ExitCode::usage,
       "optimizer.frozen: its {} pattern{} match all {} parameters, and nothing is left to train",
       r.optimizer.frozen.size(), r.optimizer.frozen.size() == 1 ? "" : "s", store.count());
}

int64_t trained_parameters(const Recipe& r) {
  const GroupSet alone;
  ParameterStore store;
  const Decoder decoder(r.model, store, alone.groups(), {});
  const OptimizerSettings settings = optimizer_settings(r);
  int64_t n = 0;
  for (int id = 0; id < store.count(); ++id)
    if (store.rule_with(id, settings).trains()) n += store.spec(id).slice.elements();
  return n;
}

DispatchOptions dispatch_options(const Recipe& r) {
  DispatchOptions o;
  o.gather = r.parallel.expert_dispatch == ExpertDispatch::all_gather;
  o.replicas = static_cast<int>(r.parallel.replicated_experts);
  o.chunks = static_cast<int>(r.parallel.expert_chunks);
  o.row_budget = r.model.moe.row_budget.value_or(0);
  return o;
}

/// The model of a resident reference: that of preference.reference_model, or the one that trains, without
/// adapters.
static std::shared_ptr<const ModelConfig> reference_model(const Recipe& r) {
  if (r.preference.reference_model) {
    LT_CHECK(r.preference.model, "expected the model of preference.reference_model = {} to be read, got none",
             *r.preference.reference_model);
    return r.preference.model;
  }
  ModelConfig own = r.model;
  own.lora = {};
  return std::make_shared<const ModelConfig>(own);
}

static OffloadSettings offload_settings(const Recipe& r, const PipelineLayout& layout) {
  OffloadSettings o;
  if (r.offload.optimizer.on()) o.fraction = r.offload.optimizer.fraction;
  if (r.offload.params.on()) o.params = r.offload.params.fraction;
  o.skip_untouched = r.offload.skip_untouched_experts;
  const bool cuda = device_of(r) == DeviceKind::cuda;
  o.host_update = cuda && (layout.update ? layout.update->host : r.offload.update == OffloadUpdate::cpu);
  // On an H200, windows of 2^18 elements cost 0.88 s of a step of 8B parameters in launches and short copies.
  if (cuda) o.window = int64_t{1} << 22;
  return o;
}

ProgramOptions program_options(const Recipe& r, const PipelineLayout& layout) {
  ProgramOptions o;
  static_cast<StepSettings&>(o) = r.train;
  o.model = r.model;
  o.precision = precision_policy(std::string(to_string(r.precision)));
  if (r.optimizer.state_dtype == StorageDtype::bf16) o.precision.state = DType::bf16;
  if (r.optimizer.grad_dtype == StorageDtype::bf16) o.precision.grad = DType::bf16;
  if (!r.optimizer.master_weights) o.precision.master = o.precision.compute;
  o.offload = offload_settings(r, layout);
  o.activations = activation_offload(r);
  o.reduce_bf16 = r.parallel.grad_reduce_dtype == GradReduceDtype::bf16;
  o.reduce_code = gradient_code(r);
  o.sharding = r.parallel.sharding();
  o.sequence_parallel = r.parallel.sequence_parallel;
  o.expert_tensor = !recipe::experts_apart(r);
  o.dispatch = dispatch_options(r);
  o.intra_node_experts = static_cast<int>(r.parallel.intra_node_experts);
  o.context_comm = r.parallel.context_comm;
  o.context_inner = static_cast<int>(r.parallel.context_inner);
  o.documents = r.data.reset_attention_mask;
  o.position_ids = r.data.reset_position_ids;
  if (trains_preferences(r.task)) o.preference = r.preference;
  if (trains_preferences(r.task) && r.preference.resident_reference()) o.reference = reference_model(r);
  if (r.distillation.teacher) {
    LT_CHECK(r.distillation.model, "expected the model of distillation.teacher = {} to be read, got none",
             *r.distillation.teacher);
    o.teacher = r.distillation.model;
  }
  o.distillation = r.distillation;
  if (r.distillation.logits) o.top_logits = r.distillation.top_k;
  o.micro_batch = r.train.micro_batch_size;
  o.seq_length = r.data.seq_length;
  o.accumulation = micro_batches_per_step(r);
  o.seed = static_cast<uint64_t>(r.seed);
  if (computes_in(r, Precision::fp8)) o.fp8 = r.fp8;
  o.products = matmul_precision_at(r, 1);
  if (r.precision == Precision::fp16) o.loss_scale = r.loss_scale.settings;
  o.decay_embeddings = r.optimizer.decay_embeddings;
  o.optimizer = optimizer_settings(r);
  o.recompute = layout.recompute ? *layout.recompute : recompute_options(r);
  o.schedule = layout.schedule;
  o.programs = layout.programs;
  o.stage_layers = layout.stage_layers;
  o.logits_chunk.rows = r.train.logits_chunk_size;
  if (device_of(r) == DeviceKind::cuda) o.logits_chunk.least = 4096;
  o.interleaved = recipe::overlaps_micro_batches(r);
  o.async_tensor_parallel = recipe::async_tensor_parallel(r);
  if (r.train.router_record) o.choices = ProgramOptions::Choices::record;
  if (r.train.router_replay) o.choices = ProgramOptions::Choices::replay;
  if (r.train.routing_probe_interval > 0) o.probe_samples = r.train.routing_probe_samples;
  o.cuda_graphs = recipe::captures_steps(r) && device_of(r) == DeviceKind::cuda;
  if (device_of(r) == DeviceKind::cuda) o.attention_backend = r.attention_backend;
  o.deterministic = r.deterministic;
  return o;
}

RecomputeOptions recompute_options(const Recipe& r) {
  const Recompute& c = r.recompute;
  RecomputeOptions o;
  if (c.granularity == RecomputeGranularity::full && c.method == RecomputeMethod::block) {
    o.run = 1;
    o.layers = c.num_layers.value_or(-1);
  } else if (c.granularity == RecomputeGranularity::full) {
    o.run = c.num_layers.value_or(1);
    if (o.run == 0)
      o.run = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(stage_layers(r)))));
  } else if (c.granularity == RecomputeGranularity::selective) {
    o.layers = c.num_layers.value_or(-1);
    for (RecomputeModule m : c.modules) o.tensors.bits |= module_tensors(m).bits;
    for (const auto& [t, save_policy] : c.tensors) {
      save_policy == SavePolicy::recompute ? o.tensors.add(t) : o.tensors.remove(t);
      if (save_policy == SavePolicy::int8) o.compressed.int8.add(t);
      if (save_policy == SavePolicy::fp8) o.compressed.fp8.add(t);
    }
  }
  return o;
}

ActivationOffloadOptions activation_offload(const Recipe& r) {
  ActivationOffloadOptions o;
  if (!r.offload.activations.on()) return o;
  o.fraction = r.offload.activations.fraction;
  o.input = true;
  for (int i = 0; i < kBlockTensors; ++i) o.tensors.add(static_cast<BlockTensor>(i));
  BlockTensorSet named;
  for (const auto& [t, save_policy] : r.recompute.tensors) {
    if (save_policy == SavePolicy::offload) named.add(t);
    if (save_policy == SavePolicy::keep) o.tensors.remove(t);
  }
  if (named.bits) o.tensors = named, o.input = false;
  return o;
}

OffloadFolders offload_folders(const Recipe& r) {
  const auto of = [](const OffloadPlace& p) {
    return p.device == OffloadDevice::nvme ? p.path.value_or("") : std::string();
  };
  return {of(r.offload.optimizer), of(r.offload.params), of(r.offload.activations)};
}

data::Packing packing(const Recipe& r) {
  data::Packing p;
  p.attention_mask = r.data.reset_attention_mask;
  p.position_ids = r.data.reset_position_ids;
  p.mask_loss = r.data.eod_mask_loss;
  p.mode = r.data.packing;
  return p;
}

data::LoaderOptions loader_options(const Recipe& r, const Mesh& mesh) {
  data::LoaderOptions o;
  for (const DataSource& s : r.data.train) o.sources.push_back({s.path, s.weight, s.files});
  for (const DataStage& stage : r.data.stages) {
    data::StageSpec& later = o.stages.emplace_back(
        data::StageSpec{samples_before_step(r, first_step(r, stage)), {}, stage.seq_length});
    for (const DataSource& s : stage.train) later.sources.push_back({s.path, s.weight, s.files});
  }
  o.seq_length = r.data.seq_length;
  o.first_sequence = r.data.train_seq_length.value_or(0);
  o.micro_batch = r.train.micro_batch_size;
  // With a growing batch, one loader step is one micro-batch of every rank. The order of the samples is the
  // same.
  const bool grows = r.train.batch_ramp.start > 0;
  o.global_batch = grows ? recipe::batch_unit(r, r.parallel.data) : r.train.global_batch_size;
  o.seed = static_cast<uint64_t>(r.seed);
  o.shuffle_window = r.data.shuffle_window;
  o.dp_rank = mesh.place_in(kDataAxes);
  o.dp_size = mesh.size(kDataAxes);
  // A site's samples do not depend on the number of its data ranks.
  o.share = r.diloco.share(mesh.site());
  o.vocab_size = r.model.vocab_size;
  o.rows = context_sharding(r, mesh).rows();
  o.packing = packing(r);
  o.mtp_tokens = r.model.num_nextn_predict_layers;
  o.pairs = trains_preferences(r.task);
  o.scores = r.task == Task::reward;
  o.labels = r.task == Task::kto;
  o.ledger = r.data.ledger;
  return o;
}

data::LoaderOptions eval_loader_options(const Recipe& r, const Mesh& mesh,
                                        const std::vector<data::SourceSpec>& sources) {
  data::LoaderOptions o = loader_options(r, mesh);
  o.sources = sources;
  o.stages.clear();
  o.first_sequence = 0;
  o.shuffle_window = 0;  // held-out data are tokenised before the run trains
  o.global_batch = o.micro_batch * r.parallel.data;
  o.share = {mesh.site(), 1, mesh.sites};
  o.eval = true;
  o.mtp_tokens = 0;
  o.ledger = false;
  o.eval_samples = r.train.eval_steps * r.train.global_batch_size;
  return o;
}

int threads_per_rank(const Recipe& r) {
  if (r.launch.threads_per_rank > 0) return static_cast<int>(r.launch.threads_per_rank);
  return std::max(1, usable_cores() / static_cast<int>(std::max<int64_t>(1, r.launch.ranks_on_host)));
}

}  // namespace ltrain
