// What a layer is handed: the streams, memory, groups and parameters of this rank, and one micro-batch.
#pragma once
#include <cmath>
#include <optional>
#include <string>

#include "kernels/elementwise/cross_entropy.h"
#include "kernels/elementwise/dropout.h"
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

/// The samples of some rows of activations.
struct RowSamples {
  Tensor sample_index;  ///< (B) i64, global
  Tensor documents;     ///< (B, whole sample) i32: where the document of each position begins; optional
  Tensor position_ids;  ///< (B * seq) i32: positions in documents; optional
};

/// One micro-batch; with a 2D or 3D tensor parallelism, this rank's sequences of it.
struct MicroBatch : RowSamples {
  int64_t batch = 1, seq = 1;  ///< seq: tokens of a sample on this context rank
  Tensor tokens;               ///< (B * seq) i32; grid, cube: of all ranks that share the vocabulary
  Tensor targets;         ///< (B * seq) i32, negative = not counted; cube: of the ranks that tokens is of
  Tensor target_samples;  ///< (samples of targets) i64: their global indices
  RowSamples turned;      ///< cube: of the rows that this rank has inside a sublayer
  ContextSharding cut;    ///< of each sample over the context ranks, when there are several
  Tensor positions;       ///< (seq) i32: where this rank's rows lie in a sample; undefined: 0, 1, ...
  int64_t micros = 1;     ///< micro-batches of a step
  Tensor experts;  ///< (layers, moe_sums(E)) f64: what routers add up in training (models/moe/router.h)
  /// balance.kind hf: (2, E) f64, choices and scores of this rank's tokens in all layers so far; (1, E) f64,
  /// the gradient of the loss with respect to a token's scores in any of them.
  Tensor balance_sums, balance_table;
  Tensor router_bias;     ///< (layers, E) as logits: added to scores where experts are chosen; optional
  double grad_scale = 1;  ///< loss_scale / counted tokens of the whole global batch
  Tensor grad_scale_at;   ///< (1) f64: the same on the device, for work that is recorded; else undefined
  double loss_scale = 1;  ///< that gradients of losses beside the tokens' are multiplied by
  /// Set where each counted target is replaced by a label that the model draws from its own logits: random
  /// numbers of the samples of `targets`, their rows left open (kernels/elementwise/sample_labels.h).
  std::optional<RowRandom> drawn;
  Tensor loss;         ///< (1) f64: the sum of token losses is added
  OutputZLoss z_loss;  ///< of the model's own logits in training
  int64_t rows() const { return batch * seq; }
  /// Of multi-token prediction, in training: (modules, B * seq) i32, what module k - 1 embeds, token i + k,
  /// and what it predicts, token i + k + 1, where that is counted; and (1) f64, where their losses are added
  /// up.
  Tensor mtp_tokens, mtp_targets, mtp_loss;
  /// As module `k` of `modules` sees it, from 0; `scale`: of the modules' mean loss in the objective.
  MicroBatch of_module(int64_t k, int64_t modules, double scale) const {
    LT_CHECK(!grad_scale_at.defined(), "captured work of multi-token prediction");
    MicroBatch mb = *this;
    mb.tokens = mtp_tokens.flat(k * rows(), {rows()});
    mb.targets = mtp_targets.flat(k * rows(), {rows()});
    mb.loss = mtp_loss;
    mb.z_loss = {};
    const double weight = scale / static_cast<double>(modules);
    // Squares are taken of gradients with drawn labels; those of the modules are to weigh as their losses do.
    mb.grad_scale *= drawn ? std::sqrt(weight) : weight;
    if (drawn) mb.drawn->stream += static_cast<uint64_t>(k) + 1;
    return mb;
  }
  GradientScale gradient_scale() const {
    return grad_scale_at.defined() ? GradientScale(grad_scale_at.ptr<double>()) : GradientScale(grad_scale);
  }
  /// As the inside of a sublayer sees it.
  MicroBatch inside() const {
    MicroBatch mb = *this;
    if (turned.sample_index.defined()) static_cast<RowSamples&>(mb) = turned;
    return mb;
  }
};

class Fp8State;

/// Tokens whose logits the head holds at once.
struct LogitsChunk {
  int64_t rows = 0;    ///< at most so many; 0: as many as 64 MiB of fp32 logits hold, but
  int64_t least = 64;  ///< no fewer than these
  bool operator==(const LogitsChunk&) const = default;
};

/// The backward of attention that cuDNN may take: in no order, in which two runs differ, or deterministic.
enum class CudnnBackward : uint8_t { none, any_order, deterministic };

struct Step {
  Stream& compute;
  Memory& memory;
  ParameterStore& params;
  const Groups& groups;
  DType dtype = DType::f32;  ///< of activations
  uint64_t seed = 0;
  bool sequence_parallel = false;  ///< between tensor-parallel matmuls each rank has a run of the rows
  bool training = true;            ///< dropout on, gradients follow
  /// Products of tensor-parallel linear layers run in parts, each beside the collective of another.
  bool async_tensor_parallel = false;
  LogitsChunk logits_chunk = {};
  CudnnBackward cudnn_backward = CudnnBackward::none;  ///< whether attention's may be cuDNN's
  bool saving = true;  ///< when training: activations are kept for the backward
  /// Set while a backward leaves its weight gradients for later (zero-bubble schedules).
  WeightGradients* deferred = nullptr;
  /// Set while a layer's backward runs whose weight gradients may wait for a collective that they can hide.
  WeightGradients* hiding = nullptr;
  Fp8State* fp8 = nullptr;                 ///< products of linear layers are of FP8
  ActivationOffload* offloaded = nullptr;  ///< where activations leave
  /// Generation: the rows of the one sample are of its texts; MicroBatch::positions has where each row lies
  /// in its text.
  const TextForward* generation = nullptr;
  Staging* staging = nullptr;  ///< what the host reads goes through; null: straight

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
  /// Names what runs now in plans, messages and traces.
  void enter(const std::string& layer) { enter_layer(compute, layer); }

  // ---- rows of the residual stream ----
  bool cuts_rows() const { return sequence_parallel && groups.tensor.size() > 1; }
  /// Rows that this rank has between the matmuls.
  int64_t stream_rows(const MicroBatch& mb) const {
    return cuts_rows() ? mb.rows() / groups.tensor.size() : mb.rows();
  }
  /// Columns of it, of `hidden`.
  int64_t stream_cols(int64_t hidden) const { return hidden / groups.column.size(); }
  /// Rows between matmuls; all rows of the micro-batch where a layer has gathered them.
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
  /// Random numbers for rows, at a place that has no other.
  RowRandom random(const std::string& place, const MicroBatch& mb, const RowMap& rows) const {
    RowRandom r;
    r.seed = seed;
    r.stream = hash_name(place);
    r.sample_index = mb.sample_index;
    r.rows = rows;
    return r;
  }
  /// Of the residual stream.
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

}  // namespace ltrain
