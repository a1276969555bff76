// A recipe: what to train and how to spread it, as plain structs. Parsed once from YAML against the table in
// schema.cpp; nothing reads a setting by its name after that. The initial values below are the defaults.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor/stream.h"
#include "kernels/tensor/tensor.h"
#include "models/layers/fp8_settings.h"
#include "models/layers/model_config.h"
#include "models/layers/recompute.h"
#include "parallel/mesh/context_sharding.h"
#include "parallel/mesh/sharding_policy.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/optim/optimizer_settings.h"
#include "runtime/recipe/choices.h"

namespace ltrain {

/// Steps up to `until_step`, 0: to the end.
struct PrecisionScheduleEntry {
  Precision precision = Precision::fp32;
  int64_t until_step = 0;
  bool operator==(const PrecisionScheduleEntry&) const = default;
};

struct Parallel {
  int64_t data = -1;  ///< -1: the ranks that the other axes leave
  int64_t tensor = 1;
  bool sequence_parallel = false;
  TensorModeChoice tensor_mode = TensorModeChoice::one_d;
  int64_t tensor_depth = 1;  ///< 2.5d: grids, each with a copy of the weights
  int64_t pipeline = 1;
  std::string schedule = "1f1b";  ///< a row of pipeline::schedules(), or "auto"
  bool chooses_schedule() const { return schedule == "auto"; }
  int64_t virtual_pipeline = 1;
  std::optional<std::string>
      schedule_file;                     ///< instead of `schedule`: a file of torch.distributed.pipelining
  std::vector<int64_t> pipeline_layers;  ///< by stage; empty: split by cost
  int64_t context = 1;
  ContextComm context_comm = ContextComm::p2p;
  int64_t context_inner = 2;  ///< a2a+p2p: neighbours that exchange sequence for heads
  int64_t expert = 1;
  int64_t expert_tensor = 1;
  ExpertDispatch expert_dispatch = ExpertDispatch::all_to_all;
  int64_t expert_chunks = 1;                    ///< parts of a micro-batch's tokens that travel one by one
  int64_t replicated_experts = 0;               ///< most replicas of hot experts on all ranks, a layer
  int64_t hierarchical_all_to_all = kOneLevel;  ///< kOneLevel, kNode or a number of ranks
  /// Filled by resolve(): ranks of the first of two levels of the all-to-all; 0: one level.
  int64_t intra_node_experts = 0;
  int64_t zero_stage = 0;
  bool reshard_after_forward = true;
  int64_t shard_group = kOneLevel;             ///< likewise
  int64_t hierarchical_reduction = kOneLevel;  ///< likewise
  /// Filled by resolve(): ranks of the first of two levels that gradients are summed on; 0: one level.
  int64_t shard_ranks = 0;
  GradReduceDtype grad_reduce_dtype = GradReduceDtype::fp32;
  OverlapChoice overlap_micro_batches = OverlapChoice::automatic;
  OverlapChoice async_tensor_parallel = OverlapChoice::automatic;
  std::string order = "tp-cp-dp-pp";  ///< of the axes over the ranks, innermost first

  ShardingPolicy sharding() const { return ShardingPolicy::zero(zero_stage, reshard_after_forward); }
  /// Key of this section that asks for two levels of gradients: of shards, or of whole gradients.
  std::string_view levels_key() const {
    return sharding().shards_optimizer() ? "shard_group" : "hierarchical_reduction";
  }
};

/// Of fp16 runs.
struct LossScale {
  LossScaleSettings settings;
  int64_t max_skipped_steps = 50;  ///< in a row
};

struct Recompute {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  RecomputeMethod method = RecomputeMethod::uniform;        ///< full
  std::optional<int64_t> num_layers;                        ///< 0: the square root of a stage's layers
  std::vector<RecomputeModule> modules;                     ///< selective
  std::vector<std::pair<BlockTensor, SavePolicy>> tensors;  ///< selective
  std::optional<std::string> budget;                        ///< auto: "12 GiB"
};

/// Where something lies outside of the device's memory.
struct OffloadPlace {
  OffloadDevice device = OffloadDevice::none;
  double fraction = 1.0;
  std::optional<std::string> path;  ///< nvme
  bool on() const { return device != OffloadDevice::none; }
};

struct Offload {
  OffloadPlace optimizer, params, activations;
};

struct DataSource {
  std::string path;
  double weight = 1.0;
  std::string name;  ///< data.eval: of the set that it is part of; "": not given
  bool operator==(const DataSource&) const = default;
};

/// What a held-out set may be called: 1 to 64 letters, digits, `-`, `_` and `.`.
bool is_set_name(std::string_view name);

struct Tokenizer {
  TokenizerKind kind = TokenizerKind::byte;
  std::optional<std::string> path;  ///< gpt2: the rank file; huggingface: a tokenizer.json or its folder
  std::optional<int64_t> eod;       ///< end-of-document token of data without a sidecar; -1: there is none
};

struct Data {
  std::vector<DataSource> train;
  std::vector<DataSource> eval;
  Tokenizer tokenizer;
  int64_t seq_length = 256;
  bool reset_attention_mask = false;  ///< tokens see their own document alone
  bool reset_position_ids = false;    ///< positions begin again in each document
  bool eod_mask_loss = false;         ///< the first token of a document is not a target
};

/// The global batch grows from `start` to train.global_batch_size.
struct BatchRamp {
  int64_t start = 0;  ///< sequences; 0: no ramp
  int64_t increment = 0;
  int64_t samples = 0;  ///< after which the batch is whole
};

struct Train {
  int64_t micro_batch_size = 1;   ///< sequences a rank computes at once
  int64_t logits_chunk_size = 0;  ///< tokens whose logits a rank holds at once; 0: auto
  int64_t global_batch_size = 8;  ///< sequences an optimizer step
  int64_t train_steps = 1000;
  BatchRamp batch_ramp;
  std::optional<int64_t> stop_step;     ///< a run ends after this step, as after the last; the schedule stays
  std::optional<int64_t> train_tokens;  ///< when given, train_steps are as many as train on them
  double clip_grad = 1.0;               ///< 0: no clipping
  double skip_grad_norm = 0;            ///< no update above it; 0: none
  int64_t max_skipped_steps = 10;       ///< in a row
  double z_loss_coeff = 0;              ///< of the z-loss on output logits; 0: none
  double stop_loss = 0;                 ///< the run ends above it; 0: none
  double ema_decay = 0;                 ///< of an average of the weights; 0: none
  int64_t eval_interval = 0;            ///< steps; 0: never
  int64_t eval_steps = 20;
  int64_t log_interval = 1;
  std::optional<double> exit_duration_in_mins;
  int64_t router_warmup_steps = 0;  ///< first steps in which routers of MoE models move alone
  bool freeze_router = false;
};

/// Parameters with settings of their own, by name.
struct ParameterGroup {
  std::string match;
  std::optional<UpdateRule> kind;
  std::optional<double> lr, weight_decay;
  bool operator==(const ParameterGroup&) const = default;
};

/// The section has keys for what optimizers have of their own.
struct OptimizerKeys : OptimizerHyperparameters {
  UpdateRule kind = UpdateRule::adamw;
  double lr = 3e-4;
  double min_lr = 0.0;
  double weight_decay = 0.1;  ///< matmul weights; never norms and biases
  bool decay_embeddings = true;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double muon_lr = 0.02;  ///< filled: lr unless given; freeze_step: a fifth of train_steps
  StorageDtype grad_dtype = StorageDtype::fp32;   ///< of accumulated gradients
  StorageDtype state_dtype = StorageDtype::fp32;  ///< of moments; fp64 in runs of it
  bool master_weights = true;                     ///< bf16
  std::vector<ParameterGroup> groups;
  std::vector<std::string> frozen;  ///< patterns of parameters that stay as they are
  /// Some parameters may have this rule.
  bool uses(UpdateRule rule) const;
};

struct LrSchedule {
  LrDecayStyle lr_decay_style = LrDecayStyle::cosine;
  int64_t lr_warmup_steps = 0;
  int64_t lr_decay_steps = 0;  ///< filled: train_steps unless given
  int64_t lr_num_cycles = 1;   ///< cosine, linear: decays one after the other, each from lr
  std::optional<double> start_weight_decay, end_weight_decay;  ///< null: weight_decay
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::constant;
  int64_t lr_wsd_decay_steps = 0;  ///< filled: a tenth of lr_decay_steps unless given; read by WSD only
  LrDecayStyle lr_wsd_decay_style = LrDecayStyle::linear;  ///< linear or cosine
};

struct CheckpointSettings {
  int64_t save_interval = 1000;  ///< steps; 0: never
  int64_t keep_latest = 2;       ///< 0: all
  bool keep_best = false;        ///< and the one of the lowest held-out loss
  bool async_save = true;
  std::string resume = "auto";  ///< auto | never | the path of a checkpoint or of a folder of them
  ResumeData resume_data = ResumeData::same;
  std::optional<std::string> upcycle;    ///< a dense checkpoint that a fresh MoE model begins with
  std::optional<std::string> load_path;  ///< weights of a fresh run: a Hugging Face folder or a checkpoint
  LoadParts load_parts = LoadParts::weights;  ///< of a checkpoint at load_path
  bool save_at_end = true;
};

struct LaunchSettings {
  std::vector<std::string> hosts;  ///< empty: this machine ("local")
  int64_t ranks_per_node = 0;      ///< 0: auto
  int64_t ranks_on_host = 1;  ///< no key: of resolve(), ranks that share a host's memory, cores and network
  int64_t threads_per_rank = 0;  ///< 0: auto
  double distributed_timeout_minutes = 10.0;
  std::optional<std::string> interface;
};

struct LogSettings {
  LogFormat format = LogFormat::text;
  bool tensorboard = false;
};

struct ProfileSettings {
  int64_t step_start = 0, step_end = 0;  ///< steps from .. up to and without, that traces are written of
  std::vector<int64_t> ranks = {0};
};

struct DebugSettings {
  bool shared_gpu = false;  ///< several ranks on one GPU
};

struct RecipeOrigins;  // runtime/recipe/diagnostics.h: where each value was given, for messages

struct Recipe {
  std::string name = "run";
  std::string output_dir;  ///< filled: runs/<name> unless given
  int64_t seed = 1234;
  DeviceChoice device = DeviceChoice::automatic;
  std::vector<std::string> from_ignore;  ///< keys of model.from's config.json that are passed over
  ModelConfig model;
  Parallel parallel;
  Precision precision = Precision::fp32;       ///< with phases that of the first
  std::vector<PrecisionScheduleEntry> phases;  ///< several, in order; empty: one precision
  Fp8Settings fp8;
  OverlapChoice cuda_graphs = OverlapChoice::automatic;  ///< recipe::captures_steps decides auto
  AttentionBackend attention_backend = AttentionBackend::automatic;
  bool deterministic = true;
  LossScale loss_scale;
  Recompute recompute;
  Offload offload;
  Data data;
  Train train;
  OptimizerKeys optimizer;
  SparsitySettings sparsity;
  LrSchedule schedule;
  CheckpointSettings checkpoint;
  std::optional<std::string> cluster;  ///< a file; null: none
  LaunchSettings launch;
  LogSettings log;
  ProfileSettings profile;
  DebugSettings debug;

  std::vector<std::string> notes;  ///< for the user: aliases that were used, keys of a config.json not needed
  std::shared_ptr<const RecipeOrigins> origins;
};

/// Reads and checks a recipe; everything that does not depend on the number of ranks is checked here.
/// Overrides: "key=value", "--section.key=value", "~key" (back to the default). Throws Error (usage) with
/// every problem found, one a line: place, key, value, rule, and what would work.
Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides = {});
/// The text of the file alone. Throws Error (usage).
std::string read_recipe(const std::string& path);
/// The same from text; `name` stands for the file in messages.
Recipe parse_recipe(std::string_view text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

/// The rules that need the number of ranks, and of those on each node (0: launch.ranks_per_node, else one
/// node has all). Throws as load_recipe does.
void validate(const Recipe& recipe, int world_size, int ranks_per_node = 0);
/// validate, then parallel.data, parallel.shard_ranks and the device filled in: auto is cuda where
/// check_device has no objection, else cpu.
Recipe resolve(const Recipe& recipe, int world_size, int ranks_per_node = 0);
/// Where the steps of a resolved recipe run.
DeviceKind device_of(const Recipe& recipe);
/// This machine and build have what the device of the recipe needs for `local_ranks` ranks. For commands that
/// train, before anything is started. Throws Error (usage).
void check_device(const Recipe& recipe, int local_ranks);
/// The model can embed every token: `needed` is one more than the largest token id of `what` ("data/train",
/// "the gpt2 tokenizer"). Throws Error (usage).
void check_vocabulary(const Recipe& recipe, const std::string& what, int64_t needed);

/// data.train names at least one source. Throws Error (usage).
void check_data_given(const Recipe& recipe);

std::string dump_yaml(const Recipe& recipe);  ///< every value; parse_recipe reads it back to the same recipe
std::string dump_json(const Recipe& recipe);
/// "key: value" lines of what all ranks of a job have alike: of a recipe that is not resolved, every key but
/// those that say how one node does its part.
std::string job_settings(const Recipe& recipe);
/// Key and value of every model.* setting, as dump_yaml writes them: what a checkpoint is compared by.
std::vector<std::pair<std::string, std::string>> model_settings(const ModelConfig& model);

std::string recipe_reference_markdown();  ///< docs/recipe.md
std::string recipe_reference_text();      ///< for --help-recipe
std::string recipe_reference_json();

// Derived values. `recipe` is resolved: parallel.data is a number.
int64_t ranks(const Recipe& recipe);  ///< product of the axes
int64_t micro_batches_per_step(
    const Recipe& recipe);  ///< gradient accumulation steps of each data-parallel rank
int64_t tokens_per_step(const Recipe& recipe);
/// The step that a run ends with: train.stop_step, else train.train_steps.
int64_t end_step(const Recipe& recipe);
/// Sequences of the step that begins after `samples` sequences: train.batch_ramp.
int64_t global_batch_after(const Recipe& recipe, int64_t samples);
/// Steps until at least `tokens` have been trained on, as the batch grows.
int64_t steps_for_tokens(const Recipe& recipe, int64_t tokens);
/// Token ids are 0 .. this - 1; 0: its file says how many.
int64_t tokenizer_vocab_size(TokenizerKind kind);

/// In some phase.
bool computes_in(const Recipe& recipe, Precision p);
Precision precision_at(const Recipe& recipe, int64_t step);  ///< of a step, from 1
std::string precision_text(const Recipe& recipe);            ///< "fp8 until step 100, then bf16"

}  // namespace ltrain
