// Layer context: streams, memory, groups and parameters of this rank, and one micro-batch.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "kernels/elementwise/dropout.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/distillation_loss.h"
#include "kernels/loss/preference_loss.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/timeline.h"
#include "models/layers/key_value_cache.h"
#include "models/layers/weight_gradients.h"
#include "parallel/mesh/context_sharding.h"
#include "parallel/mesh/groups.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

class ActivationOffload;
class Staging;

/// Samples of the rows of an activation.
struct RowSamples {
  Tensor sample_index;  ///< (B) i64, global
  Tensor documents;     ///< (B, full sample) i32: begin of each position's document; optional
  Tensor position_ids;  ///< (B * seq) i32: positions in documents; optional
};

/// Preference pairs of a micro-batch: texts 2k and 2k + 1 are the chosen and the rejected one of pair k; with
/// a labelled loss the text of example k, and its prompt with another example's completion. With
/// PreferenceKind::reward a text has one row with a target, that of its last token.
struct PairBatch {
  Tensor texts;       ///< (B * seq) i32: text of each row's target; -1: padding
  Tensor references;  ///< (T) f64: a reference model's sums of log-probabilities
  Tensor labels;      ///< labelled losses: (T / 2) i32, 1: desirable
  Tensor sums;        ///< (T, 2) f64: sum of log-probabilities, or score, and counted rows of each text;
                      ///< written by the head
  Tensor totals;      ///< (PreferenceTotals::count) f64: sums over pairs; added to in training
  Tensor weights;     ///< (T) f64: weight of the cross-entropy of each text; set within the head
  PreferenceLoss loss;
  double chosen_weight = 0;  ///< weight of the cross-entropy of chosen texts, relative to the pairs' losses
  bool totalled = false;     ///< totals are added to without training too
  bool on() const { return texts.defined(); }
};

/// Experts of each token in some layers of a micro-batch: written by the routers, or read by them.
struct RouterChoices {
  Tensor experts;                   ///< (layers, B * seq, k) i32
  std::span<const int64_t> layers;  ///< layers of dim 0, ascending, as in the full model
  /// Routers take these experts, with their own scores of them; a token whose first one is negative chooses.
  bool given = false;
  bool on() const { return experts.defined(); }
  /// Experts of a layer, from row `first` on, as shape `rows` (n, k).
  Tensor of_layer(int64_t layer, int64_t first, const Shape& rows) const {
    const auto at = std::lower_bound(layers.begin(), layers.end(), layer);
    LT_CHECK(at != layers.end() && *at == layer, "expected choices of layer {}, got {} other layers", layer,
             layers.size());
    return experts.flat(((at - layers.begin()) * experts.shape[1] + first) * experts.shape[2], rows);
  }
};

/// Experts of token ids, from hash routing or from frozen routers (docs/moe.md).
struct TokenExperts {
  /// (layers, vocabulary, k) i32; an id whose first expert is negative has none: its router chooses.
  Tensor table;
  bool freezes = false;  ///< routers write the table first, from what they have taught
  /// Training: 1 until choices are frozen, then 0. Factor of the losses of distillation and balance.
  double learns = 1;
};

struct MicroBatch;
struct Routing;
struct Step;

/// Receives the logits of rows from `first_row` on of a micro-batch, before a soft-cap.
using TakeLogits = std::function<void(Tensor logits, int64_t first_row)>;

/// Receives activations of an evaluation, as its passes compute them: the residual stream before each layer
/// in order, (rows, hidden), the output of each dense feed-forward's activation function, (rows,
/// intermediate), and the residual stream after the last layer.
///
/// experts() is called in each layer that has experts, once for each range of its tokens, in order. It
/// receives choices and weights of the range's tokens, and the experts' outputs (choices, hidden), in the
/// rows that Routing::slots names.
class ActivationObserver {
 public:
  virtual ~ActivationObserver() = default;
  virtual void residual(Stream& s, const Tensor& x) = 0;
  virtual void neurons(Stream& s, const Tensor& activation) = 0;
  virtual void experts(Stream& /*s*/, const Routing& /*routing*/, const Tensor& /*outputs*/) {}
};

/// A frozen model whose distribution a student learns (models/decoder/teacher.h). It has one micro-batch at a
/// time: forward, begin_logits, logits of chunks, end_logits, each with the student's step.
class Teacher {
 public:
  virtual ~Teacher() = default;
  /// Runs the model up to its output layer, and keeps what that reads.
  virtual void forward(const Step& student, const MicroBatch& mb) = 0;
  /// Gathers the output layer's weights and input rows.
  virtual void begin_logits(const Step& student) = 0;
  /// out: (n, columns of this rank) f32 or f64, logits of rows from first_row on of the micro-batch.
  virtual void logits(const Step& student, Tensor out, int64_t first_row) = 0;
  virtual void end_logits(const Step& student) = 0;
};

/// A teacher's logits that were recorded before: the largest of each row (kernels/loss/top_logits.h).
struct TopLogits {
  Tensor ids;     ///< (B * seq, k) i32: tokens
  Tensor values;  ///< (B * seq, k) f32 or f64: their logits
  Tensor rest;  ///< (B * seq), the same type: log of the sum of exp(logit / temperature) of all other tokens
  bool on() const { return ids.defined(); }
};

/// Distillation of a micro-batch in training.
struct DistilledBatch {
  Teacher* teacher = nullptr;
  TopLogits recorded;  ///< in the place of a teacher
  DistillationLoss loss;
  Tensor divergence;  ///< (1) f64: sum of the divergences of tokens; added to
  bool on() const { return teacher || recorded.on(); }
};

/// One micro-batch; with 2D or 3D tensor parallelism, this rank's sequences of it.
struct MicroBatch : RowSamples {
  int64_t batch = 1, seq = 1;  ///< seq: tokens of a sample on this context rank
  Tensor tokens;               ///< (B * seq) i32; 2D, 3D: of all ranks that share the vocabulary
  Tensor targets;            ///< (B * seq) i32, negative = not counted; 3D: targets of the ranks of `tokens`
  Tensor target_samples;     ///< (samples of targets) i64: their global indices
  RowSamples sublayer_rows;  ///< 3D: rows of this rank inside a sublayer
  ContextSharding cut;       ///< sharding of each sample over the context ranks, if there are several
  Tensor positions;          ///< (seq) i32: positions of this rank's rows in a sample; undefined: 0, 1, ...
  Tensor row_keys;           ///< (B * seq) i64: row_key() of each row; optional
  int64_t micros = 1;        ///< micro-batches of a step
  Tensor experts;  ///< (layers, moe_sums) f64: sums of the routers in training (models/moe/router.h)
  /// E is MoeConfig::router_outputs. balance.kind hf: (2, E) f64, choices and scores of this rank's tokens in
  /// all layers so far; (1, E) f64, gradient of the loss with respect to a token's scores in any of them.
  Tensor balance_sums, balance_table;
  /// (layers, E), dtype of the logits: added to scores for the choice of experts; optional
  Tensor router_bias;
  RouterChoices choices;  ///< optional
  TokenExperts by_token;  ///< with MoeConfig::by_token()
  double grad_scale = 1;  ///< loss_scale / counted tokens of the full global batch
  Tensor grad_scale_at;   ///< (1) f64: grad_scale on the device, for captured work; otherwise undefined
  double loss_scale = 1;  ///< factor of gradients of losses other than the tokens'
  /// Set if the label of each counted target is sampled from the model's logits: random numbers of the
  /// samples of `targets`, with rows set later (kernels/loss/sample_labels.h).
  std::optional<RowRandom> drawn;
  PairBatch pairs;  ///< task: dpo, kto, reward
  DistilledBatch distilled;
  const TakeLogits* take_logits = nullptr;  ///< called with each chunk of an evaluation's logits; null: not
  ActivationObserver* observer = nullptr;   ///< receives activations of an evaluation; null: none
  Tensor loss;                              ///< (1) f64: sum of token losses; added to
  OutputZLoss z_loss;                       ///< z-loss on the model's output logits, in training
  int64_t rows() const { return batch * seq; }
  /// Multi-token prediction in training: (modules, B * seq) i32, the tokens that module k - 1 embeds, token i
  /// + k, and its targets, token i + k + 1, negative if not counted; and (1) f64, sum of their losses.
  Tensor mtp_tokens, mtp_targets, mtp_loss;
  /// The micro-batch for module `k` of `modules`, from 0; `scale`: weight of the modules' mean loss in the
  /// objective.
  MicroBatch of_module(int64_t k, int64_t modules, double scale) const {
    LT_CHECK(!grad_scale_at.defined(),
             "expected no captured work with multi-token prediction, got a gradient scale on the device");
    MicroBatch mb = *this;
    mb.tokens = mtp_tokens.flat(k * rows(), {rows()});
    mb.targets = mtp_targets.flat(k * rows(), {rows()});
    mb.loss = mtp_loss;
    mb.z_loss = {};
    const double weight = scale / static_cast<double>(modules);
    // Gradients with sampled labels are squared. The squares of the modules' gradients get the weight of
    // their losses.
    mb.grad_scale *= drawn ? std::sqrt(weight) : weight;
    if (drawn) mb.drawn->stream += static_cast<uint64_t>(k) + 1;
    return mb;
  }
  GradientScale gradient_scale() const {
    return grad_scale_at.defined() ? GradientScale(grad_scale_at.ptr<double>()) : GradientScale(grad_scale);
  }
  /// The micro-batch inside a sublayer.
  MicroBatch inside() const {
    MicroBatch mb = *this;
    if (sublayer_rows.sample_index.defined()) static_cast<RowSamples&>(mb) = sublayer_rows;
    return mb;
  }
};

class Fp8State;

/// Number of rows whose logits the head holds at once.
struct LogitsChunk {
  int64_t rows = 0;    ///< most rows; 0: as many as fit 64 MiB of fp32 logits, but
  int64_t least = 64;  ///< at least this many
  bool operator==(const LogitsChunk&) const = default;
};

/// cuDNN's backward of attention: with sums in no fixed order (runs differ), or deterministic.
enum class CudnnBackward : uint8_t { none, any_order, deterministic };

struct Step {
  Stream& compute;
  Memory& memory;
  ParameterStore& params;
  const Groups& groups;
  DType dtype = DType::f32;  ///< dtype of activations
  uint64_t seed = 0;
  bool sequence_parallel = false;  ///< between tensor-parallel matmuls each rank has a run of the rows
  bool training = true;            ///< dropout on, a backward follows
  bool adapters = true;            ///< false, without a backward: linear layers leave out their LoRA adapters
  /// Matmuls of tensor-parallel linear layers run in chunks, each overlapping with the collective of another
  /// chunk.
  bool async_tensor_parallel = false;
  LogitsChunk logits_chunk = {};
  CudnnBackward cudnn_backward = CudnnBackward::none;  ///< use of cuDNN in attention's backward
  bool saving = true;                                  ///< in training: activations are kept for the backward
  /// Set during a backward that defers its weight gradients (zero-bubble schedules).
  WeightGradients* deferred = nullptr;
  /// Set during a layer's backward: its weight gradients may wait for a collective to overlap with.
  WeightGradients* hiding = nullptr;
  Fp8State* fp8 = nullptr;                 ///< FP8 matmuls in linear layers
  ActivationOffload* offloaded = nullptr;  ///< activation offloading; null: off
  /// Generation: the rows of the one sample belong to its texts; MicroBatch::positions has each row's
  /// position in its text.
  const TextForward* generation = nullptr;
  const MicroBatch* batch = nullptr;  ///< micro-batch of the running block, whose rows adapters drop out
  Staging* staging = nullptr;         ///< staging of copies to the host; null: direct copies

  bool keeps() const { return training && saving; }
  DType stat_type() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  Tensor activation(std::string_view name, Shape shape) {
    return memory.allocate(keeps() ? MemoryKind::activations : MemoryKind::temporaries, name, dtype, shape);
  }
  Tensor statistic(std::string_view name, Shape shape) {
    return memory.allocate(keeps() ? MemoryKind::activations : MemoryKind::temporaries, name, stat_type(),
                           shape);
  }
  Tensor temporary(std::string_view name, Shape shape) {
    return memory.allocate(MemoryKind::temporaries, name, dtype, shape);
  }
  void release(Tensor& t) {
    if (!t.defined()) return;
    if (deferred && deferred->keeps(t)) {
      deferred->release_after(t);
    } else if (hiding && hiding->keeps(t)) {
      hiding->release_after(t);
    } else {
      memory.release(t);
    }
  }
  /// Names the running layer in plans, messages and traces.
  void enter(std::string_view layer) { enter_layer(compute, std::string(layer)); }

  // ---- rows of the residual stream ----
  bool cuts_rows() const { return sequence_parallel && groups.tensor.size() > 1; }
  /// Rows of this rank between the matmuls.
  int64_t stream_rows(const MicroBatch& mb) const {
    return cuts_rows() ? mb.rows() / groups.tensor.size() : mb.rows();
  }
  /// Columns of the stream on this rank, out of `hidden`.
  int64_t stream_cols(int64_t hidden) const { return hidden / groups.column.size(); }
  /// Rows between matmuls; whole_rows(): all rows of the micro-batch, after a gather.
  RowMap row_map(const MicroBatch& mb) const {
    RowMap map = whole_rows(mb);
    if (cuts_rows()) map.first_row = groups.tensor.rank() * stream_rows(mb);
    return map;
  }
  RowMap whole_rows(const MicroBatch& mb) const {
    RowMap map;
    map.seq = mb.seq;
    if (groups.context.size() > 1) map.total = mb.cut.seq;
    map.positions = mb.positions;
    map.ids = mb.position_ids;
    return map;
  }
  /// Random numbers for rows; `place` is a unique name.
  RowRandom random(const std::string& place, const MicroBatch& mb, const RowMap& rows) const {
    RowRandom r;
    r.seed = seed;
    r.stream = hash_name(place);
    r.sample_index = mb.sample_index;
    r.rows = rows;
    return r;
  }
  /// Dropout on the residual stream.
  Dropout dropout(double p, const std::string& place, const MicroBatch& mb) const {
    Dropout d;
    if (!training || p <= 0) return d;
    static_cast<RowRandom&>(d) = random(place, mb, row_map(mb));
    d.p = p;
    d.part = groups.column.rank();
    d.parts = groups.column.size();
    return d;
  }
};

/// Sets Step::batch while a block runs, and then back to what it was: blocks may run within blocks.
class RunningBatch {
 public:
  RunningBatch(Step& step, const MicroBatch& mb) : step_(step), before_(step.batch) { step.batch = &mb; }
  ~RunningBatch() { step_.batch = before_; }
  RunningBatch(const RunningBatch&) = delete;
  RunningBatch& operator=(const RunningBatch&) = delete;

 private:
  Step& step_;
  const MicroBatch* before_;
};

}  // namespace ltrain
