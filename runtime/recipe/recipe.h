// A recipe as plain structs: the model, the data, the training and its layout. It is parsed once from YAML
// with the table in schema.cpp. Later code reads members, never key names. The initial values below are the
// defaults.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/loss/distillation_loss.h"
#include "kernels/tensor/stream.h"
#include "kernels/tensor/tensor.h"
#include "models/layers/fp8_settings.h"
#include "models/layers/model_config.h"
#include "models/layers/recompute.h"
#include "parallel/mesh/context_sharding.h"
#include "parallel/mesh/sharding_policy.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/optim/optimizer_settings.h"
#include "runtime/data/input/on_bad_record.h"
#include "runtime/data/input/record_filter.h"
#include "runtime/data/sample_packing.h"
#include "runtime/recipe/choices.h"
#include "runtime/recipe/step_settings.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain {

/// A precision and the last step that uses it; 0: until the end.
struct PrecisionScheduleEntry {
  Precision precision = Precision::fp32;
  int64_t until_step = 0;
  bool operator==(const PrecisionScheduleEntry&) const = default;
};

struct Parallel {
  int64_t data = -1;  ///< -1: all ranks that the other axes leave
  int64_t tensor = 1;
  bool sequence_parallel = false;
  TensorModeChoice tensor_mode = TensorModeChoice::one_d;
  int64_t tensor_depth = 1;  ///< 2.5d: number of grids, each with a copy of the weights
  int64_t pipeline = 1;
  std::string schedule = "1f1b";  ///< a row of pipeline::schedules(), or "auto"
  bool chooses_schedule() const { return schedule == "auto"; }
  int64_t virtual_pipeline = 1;
  std::optional<std::string>
      schedule_file;                     ///< file of torch.distributed.pipelining that replaces `schedule`
  std::vector<int64_t> pipeline_layers;  ///< layers of each stage; empty: split by cost
  int64_t context = 1;
  ContextComm context_comm = ContextComm::p2p;
  int64_t context_inner = 2;  ///< a2a+p2p: ranks of the inner all-to-all
  int64_t expert = 1;
  int64_t expert_tensor = 1;
  ExpertDispatch expert_dispatch = ExpertDispatch::all_to_all;
  /// chunks of a micro-batch's tokens that are dispatched one after another
  int64_t expert_chunks = 1;
  /// maximum of replicas of hot experts per layer, on all ranks
  int64_t replicated_experts = 0;
  int64_t hierarchical_all_to_all = kOneLevel;  ///< kOneLevel, kNode or a number of ranks
  /// Set by resolve(): ranks of the intra-node level of the all-to-all; 0: one level.
  int64_t intra_node_experts = 0;
  int64_t zero_stage = 0;
  bool reshard_after_forward = true;
  int64_t zero_layers = 0;                     ///< layers of a pipeline stage that ZeRO-3 shards as ZeRO-2
  int64_t shard_group = kOneLevel;             ///< kOneLevel, kNode or a number of ranks
  int64_t hierarchical_reduction = kOneLevel;  ///< kOneLevel, kNode or a number of ranks
  /// Set by resolve(): ranks of the first level of a two-level gradient reduction; 0: one level.
  int64_t shard_ranks = 0;
  GradReduceDtype grad_reduce_dtype = GradReduceDtype::fp32;
  OverlapChoice overlap_micro_batches = OverlapChoice::automatic;
  OverlapChoice async_tensor_parallel = OverlapChoice::automatic;
  std::string order = "tp-cp-dp-pp";  ///< order of the mesh axes over the ranks, innermost first

  ShardingPolicy sharding() const {
    return ShardingPolicy::zero(zero_stage, reshard_after_forward, zero_layers);
  }
  /// Key of this section that requests two levels of gradient reduction, with or without sharded optimizer
  /// state.
  std::string_view levels_key() const {
    return sharding().shards_optimizer() ? "shard_group" : "hierarchical_reduction";
  }
};

/// Settings of fp16 runs.
struct LossScale {
  LossScaleSettings settings;
  int64_t max_skipped_steps = 50;  ///< in a row
};

struct Recompute {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  RecomputeMethod method = RecomputeMethod::uniform;        ///< for full
  std::optional<int64_t> num_layers;                        ///< 0: the square root of a stage's layers
  std::vector<RecomputeModule> modules;                     ///< for selective
  std::vector<std::pair<BlockTensor, SavePolicy>> tensors;  ///< for selective
  std::optional<std::string> budget;                        ///< for auto: "12 GiB"
};

/// Offload target of a kind of tensor.
struct OffloadPlace {
  OffloadDevice device = OffloadDevice::none;
  double fraction = 1.0;
  std::optional<std::string> path;  ///< for nvme
  bool on() const { return device != OffloadDevice::none; }
};

struct Offload {
  OffloadPlace optimizer, params, activations;
  OffloadUpdate update = OffloadUpdate::device;  ///< offload.optimizer.update
  bool skip_untouched_experts = false;           ///< offload.optimizer.skip_untouched_experts
};

struct DataSource {
  std::string path;
  double weight = 1.0;
  std::string name;  ///< data.eval: set that this source belongs to; "": not given
  /// Field of the text, and part of a dataset folder, for data that the run tokenises; "": default.
  std::string text = {}, split = {}, config = {};
  data::RecordFilter where = {};  ///< records to keep, for data that the run tokenises
  /// Name in the file of each standard field of conversations that differs, such as {"messages": "dialog"}.
  std::map<std::string, std::string> fields = {};
  std::optional<double> max_epochs = {};  ///< data.train: how often a run may read it
  bool pending = false;                   ///< not tokenised yet; set by resolve_sources()
  /// data.shuffle_window: all token files of a training source in their order; the later ones may be missing
  /// still. Set by resolve_sources(); empty: `path` alone.
  std::vector<std::string> files = {};
  /// The names of `files` follow from their contents, so that files that do not exist yet are known.
  bool named_by_content = false;
  /// PREFIX of each of its token files.
  std::vector<std::string> token_files() const { return files.empty() ? std::vector{path} : files; }
  int64_t number = 0;  ///< place in the list of the recipe, from 0; set by resolve_sources()
  bool operator==(const DataSource&) const = default;
};

/// Mix of training data from a step on.
struct DataStage {
  int64_t from_step = 0;    ///< its first step, counted from 1; 0: by from_tokens
  int64_t from_tokens = 0;  ///< it begins with the first step before which the run has read so many tokens
  int64_t seq_length = 0;   ///< tokens of its sequences, a divisor of data.seq_length; 0: data.seq_length
  std::vector<DataSource> train;
  bool operator==(const DataStage&) const = default;
};

/// Returns whether `name` is valid for a held-out set: 1 to 64 letters, digits, `-`, `_` and `.`.
bool is_set_name(std::string_view name);

struct Tokenizer {
  const data::TokenizerKind* kind = &data::byte_tokenizer_kind();
  std::optional<std::string> path;  ///< file of the kind, or the folder with it
  std::optional<int64_t> eod;       ///< end-of-document token of data without a sidecar; -1: none
};

/// Documents that are left out because they share an n-gram of words with evaluation data.
struct Decontaminate {
  std::vector<std::string> against;  ///< files and folders of evaluation data; empty: none
  int64_t ngram = 13;                ///< words
};

struct Data {
  std::vector<DataSource> train;
  std::vector<DataStage>
      stages;  ///< mixes that replace `train` later, in ascending order of their first steps
  std::vector<DataSource> eval;
  std::optional<int64_t> train_seq_length;  ///< tokens of sequences of `train`, as DataStage::seq_length
  /// Weights of the mixes in proportion to tokens^(1 / temperature). resolve_sources() takes it into the
  /// weights and leaves it unset.
  std::optional<double> temperature;
  Deduplicate deduplicate = Deduplicate::none;
  Decontaminate decontaminate;
  Tokenizer tokenizer;
  int64_t seq_length = 256;
  data::SamplePacking packing = data::SamplePacking::concatenate;
  int64_t shuffle_window = 0;         ///< token files of a source that are shuffled together; 0: all
  bool ledger = false;                ///< each rank writes the samples of its steps to output_dir/ledger
  bool reset_attention_mask = false;  ///< tokens attend only within their document
  bool reset_position_ids = false;    ///< positions restart in each document
  bool eod_mask_loss = false;         ///< no loss for predicting the first token of a document
  /// Folder of the token files that runs make; not given: `data` in the cache folder.
  std::optional<std::string> cache;
  /// Most GB of local copies of objects at once; not given: half of what is free.
  std::optional<double> object_cache_gb;
  data::OnBadRecord on_bad_record = data::OnBadRecord::stop;
  int64_t workers = 0;     ///< threads that tokenise; 0: one per core
  double shard_mib = 256;  ///< MiB of files from which a set of token files is made
  /// task: sft, dpo: name of a built-in chat template, or a file; not given: that of the tokenizer's folder.
  std::optional<std::string> chat_template;
  TrainOn train_on = TrainOn::assistant;
};

/// The global batch grows from `start` to train.global_batch_size.
struct BatchRamp {
  int64_t start = 0;  ///< sequences; 0: no ramp
  int64_t increment = 0;
  int64_t samples = 0;  ///< number of samples until the batch reaches its full size
};

struct Train : StepSettings {
  int64_t micro_batch_size = 1;   ///< sequences of a rank's micro-batch
  int64_t logits_chunk_size = 0;  ///< tokens with logits in memory at once, per rank; 0: auto
  int64_t global_batch_size = 8;  ///< sequences per optimizer step
  int64_t train_steps = 1000;
  BatchRamp batch_ramp;
  std::optional<int64_t> stop_step;     ///< the run ends after this step; schedules still use train_steps
  std::optional<int64_t> train_tokens;  ///< if given, train_steps is derived from it
  int64_t max_skipped_steps = 10;       ///< in a row
  int64_t eval_interval = 0;            ///< steps; 0: never
  int64_t eval_steps = 20;
  int64_t log_interval = 1;
  std::optional<double> exit_duration_in_mins;
  int64_t router_warmup_steps = 0;  ///< number of first steps that update only the routers of a MoE model
  bool freeze_router = false;
  std::optional<std::string> router_record;  ///< folder for the choices of routers, step by step
  int64_t router_record_interval = 1;        ///< steps
  std::optional<std::string> router_replay;  ///< folder of choices that routers take
  int64_t routing_probe_interval = 0;        ///< steps between two probes of routers; 0: none
  int64_t routing_probe_samples = 8;         ///< sequences of a probe
};

/// Parameters selected by name, with their own settings.
struct ParameterGroup {
  std::string match;
  std::optional<UpdateRule> kind;
  std::optional<double> lr, weight_decay;
  bool operator==(const ParameterGroup&) const = default;
};

/// Keys of the optimizer section, including keys of single optimizers.
struct OptimizerKeys : OptimizerHyperparameters {
  UpdateRule kind = UpdateRule::adamw;
  double lr = 3e-4;
  double min_lr = 0.0;
  double weight_decay = 0.1;  ///< applies to matmul weights, never to norms and biases
  bool decay_embeddings = true;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double muon_lr = 0.02;  ///< default: lr; the default of freeze_step is a fifth of train_steps
  StorageDtype grad_dtype = StorageDtype::fp32;   ///< storage type of accumulated gradients
  StorageDtype state_dtype = StorageDtype::fp32;  ///< storage type of moments; fp64 in fp64 runs
  bool master_weights = true;                     ///< for bf16
  std::vector<ParameterGroup> groups;
  std::vector<std::string> frozen;  ///< patterns of parameters that are not updated
  /// Returns whether any parameter may use this rule.
  bool uses(UpdateRule rule) const;
};

/// Distillation from a teacher, or from its recorded logits.
struct Distillation : DistillationLoss {
  std::optional<std::string> teacher;  ///< a Hugging Face folder or a checkpoint
  std::optional<std::string> logits;   ///< folder of recorded logits (runtime/distillation)
  int64_t top_k = 64;                  ///< recorded logits of each token
  bool on() const { return teacher || logits; }
  /// Set by read_frozen_model() (runtime/weights/frozen_model.h), without a key: the teacher's model.
  std::shared_ptr<const ModelConfig> model;
};

/// Preference training.
struct Preference : PreferenceSettings {
  /// Resident reference: a Hugging Face folder or a checkpoint; null: the weights that the run begins with
  std::optional<std::string> reference_model;
  /// Set by read_frozen_model(), without a key: the model of reference_model.
  std::shared_ptr<const ModelConfig> model;
};

struct LrSchedule {
  LrDecayStyle lr_decay_style = LrDecayStyle::cosine;
  int64_t lr_warmup_steps = 0;
  int64_t lr_decay_steps = 0;  ///< default: train_steps
  int64_t lr_num_cycles = 1;   ///< cosine, linear: number of consecutive decays, each from lr
  std::optional<double> start_weight_decay, end_weight_decay;  ///< null: weight_decay
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::constant;
  int64_t lr_wsd_decay_steps = 0;  ///< default: a tenth of lr_decay_steps; used by WSD only
  LrDecayStyle lr_wsd_decay_style = LrDecayStyle::linear;  ///< linear or cosine
};

struct CheckpointSettings {
  int64_t save_interval = 1000;  ///< steps; 0: never
  int64_t keep_latest = 2;       ///< 0: all
  bool keep_best = false;        ///< and the one of the lowest held-out loss
  int64_t keep_every = 0;        ///< and those of its multiples; 0: none
  bool async_save = true;
  std::optional<std::string> remote;  ///< s3://BUCKET/PREFIX: a copy of each checkpoint
  std::string resume = "auto";        ///< auto | never | path of a checkpoint or of a folder with checkpoints
  ResumeData resume_data = ResumeData::same;
  std::optional<std::string> upcycle;  ///< dense checkpoint from which a fresh MoE model starts
  /// initial weights of a fresh run: a Hugging Face folder or a checkpoint
  std::optional<std::string> load_path;
  std::optional<std::string> adapter;         ///< initial values of LoRA's adapters: a folder of PEFT
  LoadParts load_parts = LoadParts::weights;  ///< parts loaded from a checkpoint at load_path
  bool save_at_end = true;
};

struct LaunchSettings {
  int64_t ranks_per_node = 0;  ///< 0: auto
  /// set by resolve(), without a key: ranks that share a host's memory, cores and network
  int64_t ranks_on_host = 1;
  int64_t threads_per_rank = 0;  ///< 0: auto
  double distributed_timeout_minutes = 10.0;
  int64_t max_restarts = 0;  ///< restarts of all ranks in one `ltrain run`
  int64_t min_nodes = 0;     ///< nodes with which a restart goes on if the others are gone; 0: all
  double restart_wait_seconds = 5, restart_wait_cap_seconds = 300;
  std::optional<std::string> interface;
  RankOrder rank_order = RankOrder::topology;
};

/// Copies of the model with ranks of their own, of which some may be lost.
struct ReplicaSettings {
  int64_t count = 0;  ///< 0: one, which is the job
  int64_t min = 1;    ///< replicas that suffice for a step
  double timeout_seconds = 60;

  bool on() const { return count > 0; }
};

struct LogSettings {
  LogFormat format = LogFormat::text;
  bool tensorboard = false;
  double rank_file_mib = 100;  ///< 0: unbounded
};

struct TelemetrySettings {
  std::optional<std::string> prometheus;  ///< file that is rewritten at each log line
  int64_t prometheus_port = 0;            ///< port of a page with the same text; 0: none
  std::optional<std::string> on_end;      ///< shell command that gets the end of the job as JSON
  double on_end_seconds = 30;             ///< longest time of on_end
  std::optional<std::string> on_save;     ///< shell command that is run for each saved checkpoint
  double on_save_seconds = 3600;          ///< longest time of on_save
};

struct ProfileSettings {
  int64_t step_start = 0, step_end = 0;  ///< traces are written for steps step_start to step_end - 1
  std::vector<int64_t> ranks = {0};
};

struct DebugSettings {
  bool shared_gpu = false;  ///< several ranks share a GPU
};

struct RecipeOrigins;  // runtime/recipe/diagnostics.h: location of each given value, for messages

struct Recipe {
  std::string name = "run";
  std::string output_dir;  ///< default: runs/<name>
  int64_t seed = 1234;
  Task task = Task::pretrain;
  DeviceChoice device = DeviceChoice::automatic;
  std::vector<std::string> from_ignore;  ///< ignored keys in the config.json of model.from
  ModelConfig model;
  Parallel parallel;
  Precision precision = Precision::fp32;       ///< with several phases: precision of the first
  std::vector<PrecisionScheduleEntry> phases;  ///< phases in order; empty: one precision
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
  DilocoSettings diloco;
  QuantizationSettings quantization;
  Preference preference;  ///< task: dpo, kto, reward
  Distillation distillation;
  LrSchedule schedule;
  CheckpointSettings checkpoint;
  std::optional<std::string> cluster;  ///< path of a cluster file; null: none
  LaunchSettings launch;
  ReplicaSettings replicas;
  LogSettings log;
  TelemetrySettings telemetry;
  ProfileSettings profile;
  DebugSettings debug;

  /// notes for the user: aliases used, keys of a config.json that are not needed
  std::vector<std::string> notes;
  std::shared_ptr<const RecipeOrigins> origins;
};

/// Reads a recipe and checks everything that does not depend on the number of ranks. Overrides: "key=value",
/// "--section.key=value", "~key" (back to the default). Throws Error (usage) with every error found, one per
/// line: location, key, value, rule, and suggestions.
Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides = {});
/// Text of the recipe file. Throws Error (usage).
std::string read_recipe(const std::string& path);
/// Like load_recipe, from text. `name` stands for the file in messages.
Recipe parse_recipe(std::string_view text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

/// Checks rules that need the number of ranks. `ranks_per_node`: 0 for launch.ranks_per_node, or all ranks on
/// one node if that is auto. Throws like load_recipe.
void validate(const Recipe& recipe, int world_size, int ranks_per_node = 0);
/// Calls validate, then fills in parallel.data, parallel.shard_ranks and the device. Device auto becomes cuda
/// if check_device accepts it, else cpu.
Recipe resolve(const Recipe& recipe, int world_size, int ranks_per_node = 0);
/// Device of a resolved recipe.
DeviceKind device_of(const Recipe& recipe);
/// Checks that this machine and build can run `local_ranks` ranks on the device of the recipe. Commands that
/// train call it before they start anything. Throws Error (usage).
void check_device(const Recipe& recipe, int local_ranks);
/// Checks that the model's vocabulary covers every token. `needed`: one more than the largest token id of
/// `what` ("data/train", "the gpt2 tokenizer"). Throws Error (usage).
void check_vocabulary(const Recipe& recipe, const std::string& what, int64_t needed);

/// Checks that data.train names at least one source. Throws Error (usage).
void check_data_given(const Recipe& recipe);

std::string dump_yaml(const Recipe& recipe);  ///< all values; parse_recipe reads the same recipe back
std::string dump_json(const Recipe& recipe);
/// "key: value" lines of the settings that all ranks of a job share. For an unresolved recipe: every key
/// except those about the resources of one node.
std::string job_settings(const Recipe& recipe);
/// Key and value of every model.* setting, as dump_yaml writes them. Checkpoints are compared by them.
std::vector<std::pair<std::string, std::string>> model_settings(const ModelConfig& model);

std::string recipe_reference_markdown();  ///< docs/recipe.md
std::string recipe_reference_text();      ///< for --help-recipe
std::string recipe_reference_json();

// Derived values. `recipe` must be resolved: parallel.data is a number.
int64_t ranks(const Recipe& recipe);  ///< product of the axes
/// Gradient accumulation steps of each data-parallel rank; with diloco.shares those of the largest site.
int64_t micro_batches_per_step(const Recipe& recipe);
/// Gradient accumulation steps of the data-parallel ranks of a site.
int64_t micro_batches_of_site(const Recipe& recipe, int64_t site);
/// Micro-batches of each data-parallel rank in an evaluation of a held-out set.
int64_t micro_batches_per_evaluation(const Recipe& recipe);
int64_t tokens_per_step(const Recipe& recipe);
/// Last step of a run: train.stop_step, else train.train_steps.
int64_t end_step(const Recipe& recipe);
/// Sequences of the step that begins after `samples` sequences, with train.batch_ramp.
int64_t global_batch_after(const Recipe& recipe, int64_t samples);
/// Sequences of all steps before `step`, counted from 1.
int64_t samples_before_step(const Recipe& recipe, int64_t step);
/// Steps until at least `tokens` tokens are processed, with a growing batch.
int64_t steps_for_tokens(const Recipe& recipe, int64_t tokens);
/// First step of a mix of data.stages, counted from 1; at least 2.
int64_t first_step(const Recipe& recipe, const DataStage& stage);

/// Returns whether any phase has precision `p`.
bool computes_in(const Recipe& recipe, Precision p);
Precision precision_at(const Recipe& recipe, int64_t step);  ///< steps count from 1
std::string precision_text(const Recipe& recipe);            ///< "fp8 until step 100, then bf16"

}  // namespace ltrain
