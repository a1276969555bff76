// The step program: one optimizer step and one evaluation step, on any device. `ltrain plan` runs it on meta,
// `ltrain run` on cpu or cuda. It is the only description of a step.
#pragma once
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor/staging.h"
#include "models/decoder/decoder.h"
#include "models/decoder/teacher.h"
#include "parallel/mesh/groups.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/pipeline/lowering.h"
#include "runtime/data/batch_loader.h"
#include "runtime/program/action_time.h"
#include "runtime/program/micro_batch_slots.h"
#include "runtime/program/preference_step.h"
#include "runtime/program/program_options.h"
#include "runtime/program/step_sums.h"

namespace ltrain {

/// Point at which a train step on meta ends.
enum class StepEnd : uint8_t {
  update,
  before_update,
  first_micro_batch,  ///< after the first micro-batch of the step, before gradients are reduced
};

/// Bytes that a rank offloads from its device memory.
struct OffloadedBytes {
  int64_t optimizer = 0, params = 0, activations = 0;
  int64_t all() const { return optimizer + params + activations; }
  bool operator==(const OffloadedBytes&) const = default;
};

using HostBatch = data::Batch;

/// Device resources of a rank.
struct Device {
  Stream& compute;
  Memory& memory;
  const Groups& groups;
  Memory* host = nullptr;       ///< host memory for copies, if the device has its own memory
  OffloadTargets offload = {};  ///< targets for offloaded tensors
};

/// Router statistics of a step, over all ranks.
struct ExpertStatistics {
  /// Sums over the layers, weighted as in the gradient.
  double balance_loss = 0, z_loss = 0, entropy_loss = 0;
  std::optional<double> distillation_loss;  ///< with router.freeze_step
  /// Per layer, empty for a dense layer: tokens that chose each real expert, and tokens kept after drops.
  std::vector<std::vector<double>> chosen, kept;
  /// With a row budget, by layer: token rows beyond the budget, and slices that these rows needed (mean over
  /// micro-batches and ranks).
  std::vector<double> beyond_rows, beyond_slices;
};

struct DistillationResult {
  double ce_loss = 0;  ///< cross-entropy of the labels
  double kl = 0;       ///< KL(teacher || student) at the temperature
};

struct StepResult {
  double loss = 0;       ///< mean over counted tokens of the global batch
  double grad_norm = 0;  ///< before clipping
  /// Names in metrics.jsonl and means over the same tokens of the step's other sums (StepSums::means):
  /// z_loss, with its coefficient, and mtp_loss, which is a mean over modules, too.
  std::vector<std::pair<std::string, double>> means;
  ExpertStatistics experts;
  std::optional<PreferenceResult> preference;  ///< set with pairs; `loss` is then the mean over them
  /// Set with a teacher: means of the terms of `loss` (DistillationLoss::of).
  std::optional<DistillationResult> distillation;
  int64_t tokens = 0;    ///< counted, global
  bool finite = true;    ///< false: not finite, and the update was skipped
  bool skipped = false;  ///< update skipped on all ranks because of skip_grad_norm
  /// Update skipped because a scaled gradient was not finite; the scale may back off.
  bool overflow = false;
  double loss_scale = 1;        ///< loss scale of this step
  bool diverged = false;        ///< update skipped because of stop_loss
  bool stop_requested = false;  ///< some rank asked to stop
  bool news = false;            ///< some rank has news for all, which they share after the step
  bool applies = true;          ///< false: a replica was lost meanwhile, and the step must be made again

  /// One of `means`; 0 if the step has no such sum.
  double mean(std::string_view name) const {
    for (const auto& [key, value] : means)
      if (key == name) return value;
    return 0;
  }
};

struct EvalResult {
  double loss = 0;     ///< mean over the counted targets, in nats; with pairs, over them
  int64_t tokens = 0;  ///< number of counted targets
  int64_t bytes = 0;   ///< bytes of text of these targets; 0: unknown
  std::optional<PreferenceResult> preference;  ///< set with pairs
  double divergence = 0;                       ///< kto: estimate over the evaluated examples, at least 0
  double bits_per_byte() const {
    return bytes > 0 ? loss * static_cast<double>(tokens) / (std::numbers::ln2 * static_cast<double>(bytes))
                     : 0;
  }
};

/// Score of a token, given all tokens before it.
struct TokenScore {
  double log_probability = 0;  ///< natural logarithm
  bool likeliest = false;      ///< the token has the highest logit
};

/// A text and the tokens to append to it.
struct TextTokens {
  KeyValueCache* cache = nullptr;
  std::vector<int32_t> tokens;
};

/// Name of TrainProgram::probed_choices in checkpoints.
inline constexpr const char* kProbedChoices = "optimizer/routing_probe";

class MetaMemory;
class StageRun;

class TrainProgram {
 public:
  using AskStop = std::function<bool()>;

  TrainProgram(const ProgramOptions& options, Device device);

  const ProgramOptions& options() const { return options_; }
  ParameterStore& parameters() { return store_; }
  const Decoder& decoder() const { return decoder_; }
  /// The teacher, or the resident reference; null without them.
  FrozenModel* frozen_model() { return teacher_ ? teacher_.get() : reference_.get(); }

  /// This rank's context-parallel shard of each sequence.
  const ContextSharding& context_sharding() const { return cut_; }
  /// On meta: times of the actions of the last train step, without the work before, between and after them.
  const std::vector<ActionTime>& actions() const { return actions_; }

  /// On meta: replays actions that repeat those of an earlier micro-batch instead of running them
  /// (ActionRepeats). `memory`: the program's memory. The trace then has entries of the first actions only,
  /// and counts in repeats() which parts of them were repeated.
  void repeat_actions(MetaMemory& memory) { repeated_ = &memory; }

  /// On meta: makes train steps end early, to measure a part of a step.
  void end_at(StepEnd end) { ends_at_ = end; }

  /// Bytes in offload memory.
  OffloadedBytes offloaded() const;

  void initialize() { store_.initialize(options_.seed); }

  /// Takes effect at the next step or evaluation.
  void set_matmul_precision(MatmulPrecision products);

  /// Later train steps sum over replicas, too; null: they do not.
  void sum_over(ReplicaSums* replicas) { replicas_ = replicas; }

  /// Loss scaler; null without loss scaling.
  LossScaler* loss_scaler() { return scaler_ ? &*scaler_ : nullptr; }

  /// Runs one optimizer step over `accumulation` micro-batches. `ask_stop` is called at its end, and all
  /// ranks agree: stop_requested is set if any rank returns true; likewise `ask_news` and news. Fewer batches
  /// than `accumulation` make a smaller step, which runs the first micro-batches of a pipeline schedule. On
  /// meta without batches: a full step. Deterministic unless the options allow otherwise: the bits depend
  /// only on the batches and the state.
  StepResult train_step(const std::vector<HostBatch>& batches, const OptimizerStep& scheduled,
                        const AskStop& ask_stop = {}, const std::function<bool()>& ask_news = {});

  /// Evaluates the batches that `next` returns until it returns null. All data ranks must have the same
  /// number of batches. On meta without `next`: one batch. With `ask_stop`, all ranks agree before each batch
  /// whether to stop, and a stopped evaluation returns nullopt. `token_bytes`: bytes of text of each token
  /// id; ids beyond its end count as 0 bytes. `divergence`: PreferenceLoss::divergence.
  std::optional<EvalResult> evaluate(const std::function<const HostBatch*()>& next, const AskStop& ask_stop,
                                     const std::vector<int32_t>& token_bytes = {}, double divergence = 0);
  /// Receives a batch and the choices of its routers: (layers with experts, tokens of the batch, k) expert
  /// indices, best first; negative with top_p: not chosen.
  using TakeChoices = std::function<void(const HostBatch& batch, const std::vector<int32_t>& choices)>;
  /// Sets what evaluations call for each batch, null for nothing. Needs ProgramOptions::keeps_choices().
  void take_choices(TakeChoices take) { take_choices_ = std::move(take); }
  /// ProgramOptions::probe_samples: numbers that this program keeps, and saves with its state: for layers
  /// with experts of the full model (layers, samples, seq_length, k), then one more. Zero before the first
  /// write.
  std::vector<int32_t> probed_choices();
  void keep_probed_choices(const std::vector<int32_t>& numbers);
  /// Receives a batch of an evaluation and logits of its rows from `first_row` on, row by row, after a
  /// soft-cap. They are those of the rank's columns.
  using TakeHostLogits =
      std::function<void(const HostBatch& batch, int64_t first_row, const std::vector<double>& logits)>;
  /// Sets what evaluations call for each chunk of logits. For one rank of the tensor and the pipeline axis.
  void take_logits(TakeHostLogits take) { take_logits_ = std::move(take); }
  /// Sets what receives activations of evaluations, for a program of one rank; null: nothing.
  void observe(ActivationObserver* observer) { observer_ = observer; }

  // ---- choices of routers in training (router_choices.cpp) ----

  /// Layers with experts on this rank, ascending; those of multi-token prediction come after all others.
  const std::vector<int64_t>& router_layers() const { return router_layers_; }
  /// Experts of a micro-batch of the last train step in a layer of router_layers(): (rows, k). Rows that
  /// other tensor ranks route are undefined. Needs Choices::record.
  std::vector<int32_t> read_choices(int64_t micro, size_t layer);
  /// Experts for the next train step, likewise; a row whose first one is negative chooses. Needs
  /// Choices::replay.
  void give_choices(int64_t micro, size_t layer, const std::vector<int32_t>& choices);
  /// Bytes of the choices of a step.
  int64_t choices_bytes() const { return choices_.defined() ? choices_.bytes() : 0; }
  /// Returns the loss only.
  double evaluate(const std::function<const HostBatch*()>& next);

  /// Receives a batch and the sums of log-probabilities and numbers of tokens of its texts, (T, 2). They are
  /// complete on ranks of the pipeline's last stage; of others nothing is received.
  using TakeSums = std::function<void(const HostBatch& batch, const std::vector<double>& sums)>;
  /// With ProgramOptions::preference: forward passes over the batches that `next` returns until it returns
  /// null. All data ranks must have the same number of batches. On meta without `next`: one batch.
  void score_pairs(const std::function<const HostBatch*()>& next, const TakeSums& take);

  // ---- generation (generation.cpp): all ranks make the same calls in the same order ----

  /// Allocates this rank's keys and values for a text of seq_length tokens. They are not released before the
  /// program ends.
  KeyValueCache make_cache();
  /// Returns whether the cached keys of a text must be recomputed when it grows to `length` tokens: longrope
  /// uses other angles beyond the original positions. extend and score fail for such a text.
  bool must_reread(const KeyValueCache& text, int64_t length) const;
  /// Appends to each text its tokens (at least one), and returns for each text the logits (V) of the next
  /// token. Each text must have room for its tokens. On meta the tokens are ignored, and the largest forward
  /// runs.
  std::vector<std::vector<float>> extend(const std::vector<TextTokens>& texts);
  /// Appends `tokens` to a text that has room for them. Returns for each position the score of its target,
  /// given the token at that position and all before it. On meta: runs the largest forward.
  std::vector<TokenScore> score(KeyValueCache& text, const std::vector<int32_t>& tokens,
                                const std::vector<int32_t>& targets);

  /// Returns whether any rank passed true. A collective call of all ranks.
  bool any_rank(bool mine);

 private:
  class StepPasses;
  /// Terms of the loss of a step's global batch.
  struct LossTerms {
    int64_t tokens = 0;  ///< counted
    PairCounts pairs;
    int64_t count = 0;      ///< number that gradients are divided by: tokens or pairs
    int64_t micros = 0;     ///< micro-batches of the step, those of other replicas included
    double divergence = 0;  ///< kto: PreferenceLoss::divergence
  };

  // ---- a train step (train_step.cpp) ----
  LossTerms count_terms(const std::vector<HostBatch>& batches);
  /// PreferenceSettings::references_in_step: the batches with the sums of the resident reference, or of the
  /// model without its adapters, from forward passes over all micro-batches (preference_step.cpp). On meta:
  /// no batches.
  std::vector<HostBatch> with_references(const std::vector<HostBatch>& batches);
  /// Forward passes of a model without dropout over all micro-batches of a step; its weights are those of
  /// `step`. `slot`: micro-batch in a slot; `done`: called for each one after its pass, with its slot.
  void run_forwards(const Decoder& model, Step& step, const std::vector<HostBatch>& batches,
                    const std::function<MicroBatch(int)>& slot,
                    const std::function<void(int64_t micro, int64_t slot)>& done);
  /// kto: mean of policy - reference over the mismatched texts of the global batch, at least 0, from forward
  /// passes without dropout over all micro-batches (preference_step.cpp). `examples`: global.
  double divergence(const std::vector<HostBatch>& batches, int64_t examples);
  /// Estimates the curvature by passes of its own, for an optimizer that asks for it in this step.
  void estimate_curvature(EstimatePass estimate, Step& step, StepPasses& passes,
                          const OptimizerStep& scheduled, const LossTerms& terms);
  void run_micro_batches(StepPasses& passes, int64_t update, EstimatePass estimate);
  /// On meta: actions of later micro-batches repeat those of earlier ones.
  bool same_actions(EstimatePass estimate) const;
  /// Reads the sums of a step and writes loss, gradient norm and statistics of the result.
  void read_result(StepResult& result, const LossTerms& terms);
  /// Decides whether the step updates the parameters. Needs the result's loss and gradient norm.
  bool accept(StepResult& result);
  /// Adds to the result's means what the update moved.
  void update(const OptimizerStep& args, StepResult& result);
  void sum_counts_over_replicas(int64_t& tokens, int64_t& micros);
  void sum_gradients_over_replicas();
  /// DiLoCo, after the update of step `step`. `agrees`: it ends a round, and biases of routers are averaged
  /// over sites.
  void synchronize_sites(int64_t step, bool agrees);
  /// Captures a graph for each kind of micro-batch, and replays it: the first of a step, which gathers
  /// updated weights and writes gradients; the later ones, which add to gradients; and the last, after which
  /// gradients are reduced. `pass` runs micro-batches [first, first + count) of a step of `micros` through
  /// this rank's stages. Their batches must be loaded.
  void captured_pass(int64_t first, int64_t count, int64_t micros, const std::function<void()>& pass);

  // ---- generation ----
  /// Sets the length that the text will have, before its rows are computed.
  void grow(KeyValueCache& text, int64_t count) const;
  /// Runs one forward over rows of texts. All ranks get its logits.
  void extend_rows(const TextForward& forward, const int32_t* tokens);
  /// Sums logits over all ranks. Each vocabulary shard is counted once.
  void share_logits(Tensor logits);

  /// Copies a batch into an input slot.
  void load(const HostBatch& batch, int64_t slot, bool training) {
    slots_->load(batch, slot, training, staging_);
  }
  /// This rank's micro-batch in an input slot, with the sums that its loss is added to.
  MicroBatch micro_batch(int64_t slot) const;
  Step make_step(bool training);
  bool staged() const { return options_.staged(); }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1; }
  int pipeline_rank() const { return device_.groups.coordinate(Axis::pipeline); }
  /// Sums up to three counts in place over the ranks of the site that see different tokens, or of all sites.
  void sum_counts(std::span<int64_t> counts, bool all_sites = false);
  ExpertStatistics expert_statistics(const StepSums::Values& sums) const;
  void make_router_bias();
  void make_choices();
  void make_token_experts();
  /// Experts of token ids for the micro-batches of train step `step`.
  TokenExperts token_experts_of(int64_t step);
  RouterChoices choices(int64_t micro) const;
  /// Room for the choices of an evaluation's micro-batch in an input slot, where there is any.
  RouterChoices evaluated_choices(int64_t slot) const;
  void hand_choices(const HostBatch& batch, int64_t slot);
  void hand_logits(const HostBatch& batch, const Tensor& logits, int64_t first_row);
  void make_fp8();
  /// Tokens of a global batch without padding.
  int64_t full_tokens() const {
    return options_.micro_batch * cut_.rows().rows * options_.accumulation * device_.groups.gradient.size();
  }
  void make_frozen_model();

  ProgramOptions options_;
  Device device_;
  ParameterStore store_;
  Decoder decoder_;
  std::unique_ptr<FrozenTeacher> teacher_;
  std::unique_ptr<FrozenModel> reference_;
  ContextSharding cut_;
  std::vector<pipeline::PipelineStep> program_;  // program of a full train step
  Staging staging_;
  std::optional<MicroBatchSlots> slots_;
  std::optional<StepSums> sums_;
  Tensor text_positions_;                // (rows of a forward) i32, for generation
  Tensor balance_sums_, balance_table_;  // tensors of MicroBatch
  Tensor router_bias_;                   // (layers, E); defined if the model has a correction bias
  Tensor token_experts_;                 // TokenExperts::table; defined with MoeConfig::by_token()
  std::optional<bool> frozen_;           // choices of token ids are in the table; unknown before a train step
  std::vector<int64_t> router_layers_;
  Tensor choices_;         // (micro-batches, layers, rows, k) i32: RouterChoices; defined with Choices
  Tensor probed_choices_;  // i32; defined with probe_samples
  TakeChoices take_choices_;
  TakeHostLogits take_logits_;
  ActivationObserver* observer_ = nullptr;
  Tensor count_;  // (3) i64
  Tensor scale_;  // (1) f64, gradient scale; defined with CUDA graphs
  std::vector<ActionTime> actions_;
  std::optional<LossScaler> scaler_;
  std::unique_ptr<Fp8State> fp8_;
  bool fp8_begun_ = false;
  MatmulPrecision matmul_precision_ = MatmulPrecision::plain;
  int64_t steps_ = 0;
  ReplicaSums* replicas_ = nullptr;
  std::optional<ActivationOffload> offloaded_;
  MetaMemory* repeated_ = nullptr;
  StepEnd ends_at_ = StepEnd::update;
  std::unique_ptr<Graph> graphs_[2][2];  // index: has an earlier micro-batch; has a later one
};

/// Layers of each stage of this rank.
std::vector<StageLayers> stages_of_rank(const ProgramOptions& options, int pipeline_rank);
/// Options of the groups that a program of these options communicates through.
GroupSet::Options group_options(const ProgramOptions& options);

/// Policy of a precision name: fp32 | tf32 | bf16 | fp8 | fp16 | fp64. tf32 and fp8 apply to matmuls only.
PrecisionPolicy precision_policy(const std::string& name);

}  // namespace ltrain
