// The step program: what one optimizer step and one evaluation step do, on whatever device the streams are.
// `ltrain plan` runs it on meta, `ltrain run` on cpu or cuda; there is no other description of a step.
#pragma once
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor/staging.h"
#include "models/decoder/decoder.h"
#include "parallel/mesh/groups.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/pipeline/lowering.h"
#include "runtime/data/batch_loader.h"
#include "runtime/program/action_time.h"

namespace ltrain {

/// What products of matrices are computed in.
enum class MatmulPrecision : uint8_t {
  plain,  ///< the type that is stored
  tf32,   ///< f32 operands with 10 bits after the point
  fp8     ///< in linear layers operands of FP8
};

struct ProgramOptions {
  ModelConfig model;
  PrecisionPolicy precision;
  ShardingPolicy sharding;
  int64_t bucket_elements = 4 << 20;
  int64_t micro_batch = 1, seq_length = 1, accumulation = 1;
  uint64_t seed = 1234;
  double clip_grad = 1.0;                       ///< 0: no clipping
  double skip_grad_norm = 0;                    ///< no update above it; 0: none
  std::optional<LossScaleSettings> loss_scale;  ///< dynamic, of fp16
  double z_loss_coeff = 0;                      ///< of the z-loss on output logits
  double stop_loss = 0;                         ///< no update above it, the loss diverges; 0: none
  bool decay_embeddings = true;                 ///< weight decay applies to embeddings too
  OptimizerSettings optimizer;
  OffloadSettings offload;
  bool reduce_bf16 = false;  ///< gradients are rounded to bf16 to be summed
  bool reduce_int8 = false;  ///< likewise to 8 bits, with error feedback
  double ema_decay = 0;      ///< of the average of weights that evaluations see; 0: none
  RecomputeOptions recompute;
  ActivationOffloadOptions activations;  ///< that leave between forward and backward
  bool sequence_parallel = false;
  bool expert_tensor = true;                    ///< tensor ranks share each expert
  DispatchOptions dispatch;                     ///< of tokens to their experts
  int intra_node_experts = 0;                   ///< ranks of a first level of their all-to-all; 0: one level
  ContextComm context_comm = ContextComm::p2p;  ///< with several context ranks
  int context_inner = 1;                        ///< a2a+p2p: ranks that exchange
  bool documents = false;                       ///< batches say where documents begin, and attention heeds it
  bool position_ids = false;                    ///< batches have positions of their own
  /// Of the pipeline axis; without stages: one stage that has everything.
  pipeline::Schedule schedule;
  pipeline::Programs programs;                        ///< of the schedule, if they are made already
  std::vector<int> stage_layers;                      ///< layers of each of the schedule's stages
  std::optional<Fp8Settings> fp8;                     ///< where MatmulPrecision::fp8 is ever asked for
  MatmulPrecision products = MatmulPrecision::plain;  ///< at first
  LogitsChunk logits_chunk;
  /// A micro-batch's backward and the next one's forward run by turns, where there is no pipeline. The
  /// schedule of one has its pairs.
  bool interleaved = false;
  bool async_tensor_parallel = false;  ///< products of tensor ranks in parts, beside their collectives
  bool cuda_graphs = false;  ///< passes are recorded in the second step, and run as one from then on
  AttentionBackend attention_backend = AttentionBackend::own;  ///< on a GPU
  bool deterministic =
      true;  ///< of the kernels; attention's backward by cuDNN then only where it is asked for
  bool for_training = true;
};

/// Where a train step on meta ends.
enum class StepEnd : uint8_t {
  update,
  before_update,
  first_micro_batch,  ///< of all, whose gradients are not reduced yet
};

/// Bytes of a rank outside of its memory.
struct OffloadedBytes {
  int64_t optimizer = 0, params = 0, activations = 0;
  int64_t all() const { return optimizer + params + activations; }
  bool operator==(const OffloadedBytes&) const = default;
};

using HostBatch = data::Batch;

/// The device side of a rank.
struct Device {
  Stream& compute;
  Memory& memory;
  const Groups& groups;
  Memory* host = nullptr;    ///< host memory that copies go through, where the device has memory of its own
  OffloadTargets slow = {};  ///< of what is offloaded
};

/// What the routers of a step did, over all ranks.
struct ExpertStatistics {
  double balance_loss = 0, z_loss = 0;  ///< sums over the layers, each weighed as in the gradient
  /// By layer, empty where it has no experts: choices of each expert; of them, those not dropped.
  std::vector<std::vector<double>> chosen, kept;
  /// With a budget of rows, by layer: rows that came to a rank beyond it; slices that these went in, the mean
  /// over micro-batches and ranks.
  std::vector<double> beyond_rows, beyond_slices;
};

struct StepResult {
  double loss = 0;       ///< mean over counted tokens of the global batch
  double mtp_loss = 0;   ///< of multi-token prediction: mean over its modules, of the same tokens
  double z_loss = 0;     ///< on output logits: mean over the same tokens, coefficient included
  double grad_norm = 0;  ///< before clipping
  ExpertStatistics experts;
  int64_t tokens = 0;           ///< counted, global
  bool finite = true;           ///< false: no update was made
  bool skipped = false;         ///< by skip_grad_norm, on all ranks alike: no update was made
  bool overflow = false;        ///< a scaled gradient was not finite: likewise, and the scale may back off
  double loss_scale = 1;        ///< of this step
  bool diverged = false;        ///< by stop_loss, likewise
  bool stop_requested = false;  ///< some rank asked to stop
};

struct EvalResult {
  double loss = 0;     ///< mean over the targets that count, in nats
  int64_t tokens = 0;  ///< those targets
  int64_t bytes = 0;   ///< of text that they stand for; 0: not known
  double bits_per_byte() const {
    return bytes > 0 ? loss * static_cast<double>(tokens) / (std::numbers::ln2 * static_cast<double>(bytes))
                     : 0;
  }
};

/// What the model says of a token, given all before it.
struct TokenScore {
  double log_probability = 0;  ///< natural logarithm
  bool likeliest = false;      ///< no other token is likelier
};

/// What a text goes on with.
struct TextTokens {
  KeyValueCache* cache = nullptr;
  std::vector<int32_t> tokens;
};

class MetaMemory;
class StageRun;

class TrainProgram {
 public:
  using AskStop = std::function<bool()>;

  TrainProgram(const ProgramOptions& options, Device device);

  const ProgramOptions& options() const { return options_; }
  ParameterStore& parameters() { return store_; }
  const Decoder& decoder() const { return decoder_; }

  /// This rank's part of each sequence.
  const ContextSharding& context_sharding() const { return cut_; }
  /// On meta: the actions of the last train step, without what is before, between and after them.
  const std::vector<ActionTime>& actions() const { return actions_; }

  /// On meta, of which `memory` is the program's: actions that do what the same ones of the micro-batch
  /// before did take its time and memory without running (ActionRepeats). What a step is then known by is its
  /// time, its actions' and its memory, not its ops, traffic and waits.
  void repeat_actions(MetaMemory& memory) { repeated_ = &memory; }

  /// On meta: where train steps end, for who asks what layers take.
  void end_at(StepEnd end) { ends_at_ = end; }

  /// Bytes in offload memory.
  OffloadedBytes offloaded() const;

  void initialize() { store_.initialize(options_.seed); }

  /// From the next step or evaluation on.
  void set_matmul_precision(MatmulPrecision products);

  /// Of the loss, where it is scaled; else null.
  LossScaler* loss_scaler() { return scaler_ ? &*scaler_ : nullptr; }

  /// One optimizer step over `accumulation` micro-batches. `ask_stop`, called at its end, is agreed on: the
  /// result has it if any rank says so. Fewer batches than `accumulation` make a smaller step; of a
  /// pipeline's schedule the first micro-batches then. On meta without batches: a whole one. Deterministic,
  /// unless the options let it not be: the bits depend on the batches and the state alone.
  StepResult train_step(const std::vector<HostBatch>& batches, const AdamwArgs& adamw,
                        const AskStop& ask_stop = {});

  /// Over the batches that `next` gives, and those of the other data ranks, until it returns null. All ranks
  /// give equally many. On meta without `next`: one batch. With `ask_stop` all ranks agree before each batch
  /// whether to go on; nothing when they do not. `token_bytes`: bytes of text of each id, those beyond have
  /// none.
  std::optional<EvalResult> evaluate(const std::function<const HostBatch*()>& next, const AskStop& ask_stop,
                                     const std::vector<int32_t>& token_bytes = {});
  /// The loss alone.
  double evaluate(const std::function<const HostBatch*()>& next);

  // ---- generation (generation.cpp): all ranks are asked for the same, in the same order ----

  /// Room for this rank's keys and values of a text of seq_length tokens, for as long as this lives.
  KeyValueCache make_cache();
  /// Whether a text's keys, if it grows to `length` tokens, must be computed anew: longrope turns those of a
  /// text beyond its original positions by other angles. extend and score refuse such a text.
  bool must_reread(const KeyValueCache& text, int64_t length) const;
  /// Appends to each text its tokens, at least one, and returns for each the logits (V) of what follows.
  /// Texts have room for theirs. On meta the tokens are ignored: the memory of the most rows that one forward
  /// has.
  std::vector<std::vector<float>> extend(const std::vector<TextTokens>& texts);
  /// Appends `tokens` to a text that has room for them; for each the score of the target of its place, after
  /// it and all before it. On meta: the memory.
  std::vector<TokenScore> score(KeyValueCache& text, const std::vector<int32_t>& tokens,
                                const std::vector<int32_t>& targets);

  /// Whether any rank says so; all ask at once.
  bool any_rank(bool mine);

 private:
  /// Says how long a text will be, before rows of it are computed.
  void grow(KeyValueCache& text, int64_t count) const;
  /// One forward over rows of texts; its logits on all ranks.
  void extend_rows(const TextForward& forward, const int32_t* tokens);
  /// Sums the logits of the parts of the vocabulary, of which each is counted once.
  void share_logits(Tensor logits);
  /// Puts a batch into one of the places that micro-batches in flight have.
  MicroBatch load(const HostBatch& batch, int64_t place, bool training);
  /// The micro-batch that lies in `place`.
  MicroBatch in_place(int64_t place) const;
  /// A whole micro-batch in `place`, and the sequences of one rank of a 2D or 3D tensor parallelism.
  MicroBatch whole_in_place(int64_t place) const;
  RowSamples samples_of(const MicroBatch& whole, int64_t part) const;
  Step make_step(bool training);
  bool staged() const { return options_.stage_layers.size() > 1; }
  /// Sums over the ranks that see different tokens, in place; two at most.
  void sum_counts(std::span<int64_t> counts);
  /// Micro-batches [first, first + count) of a step of `micros`, which are loaded, through this rank's
  /// stages: recorded once for the first of a step, with the gathers of what others have updated, and which
  /// writes gradients, once for those that add to them, and once for the last, after which ranks sum them.
  void graphed_pass(int64_t first, int64_t count, int64_t micros, const std::function<void()>& pass);
  void clear_sums();
  /// Waits for loss, ranks that ask to stop, squares by segment and sums of routers, and gives them.
  std::vector<double> read_sums();
  /// Sums loss and squares over all ranks, counting once what several have.
  void reduce_sums(const char* reading);
  ExpertStatistics expert_statistics(const std::vector<double>& all_sums) const;
  Tensor summed_routers();
  void make_router_bias();
  void make_fp8();

  ProgramOptions options_;
  Device device_;
  ParameterStore store_;
  Decoder decoder_;
  ContextSharding cut_;
  std::vector<pipeline::PipelineStep> program_;  // of a train step
  int64_t places_ = 1;
  Tensor tokens_, targets_, sample_index_;  // (places, ...)
  Tensor mtp_tokens_, mtp_targets_;         // likewise, of multi-token prediction
  Tensor positions_;                        // as in MicroBatch, where the sequence is cut
  Tensor text_positions_;                   // (rows of a forward) i32, of generation
  Tensor documents_, position_ids_;         // (places, ...), where batches have them
  std::vector<ActionTime> actions_;
  std::optional<LossScaler> scaler_;
  std::unique_ptr<Fp8State> fp8_;
  bool fp8_begun_ = false;
  MatmulPrecision matmul_precision_ = MatmulPrecision::plain;
  Staging staging_;
  Tensor sums_;                          // f64: see sum_count
  Tensor loss_;                          // sum of token losses
  Tensor mtp_loss_;                      // of those of multi-token prediction
  Tensor z_loss_;                        // sum of z-losses of output logits
  Tensor squares_;                       // (segments), of gradients
  Tensor experts_;                       // (layers, moe_sums), of MoE models
  Tensor balance_sums_, balance_table_;  // MicroBatch's
  Tensor router_bias_;                   // (layers, E), of MoE models that have it
  Tensor count_;                         // (2) i64
  Tensor scale_;                         // (1) f64: of the gradient, where work is recorded
  int64_t steps_ = 0;
  std::optional<ActivationOffload> offloaded_;
  MetaMemory* repeated_ = nullptr;
  StepEnd ends_at_ = StepEnd::update;
  std::unique_ptr<Graph> graphs_[2][2];  // by whether another micro-batch is before, and after
};

/// The layers of this rank's stages.
std::vector<StageLayers> stages_of_rank(const ProgramOptions& options, int pipeline_rank);
/// The groups that a program of these options communicates through.
GroupSet::Options group_options(const ProgramOptions& options);

/// fp32 | tf32 | bf16 | fp8 | fp16 | fp64: what is stored; tf32 and fp8 are of products alone.
PrecisionPolicy precision_policy(const std::string& name);

}  // namespace ltrain
