// The final norm, the output projection and the cross-entropy, in chunks of rows: logits of the full batch
// are never held. In training, a chunk's gradient is computed while its logits exist. The vocabulary is
// sharded over the inner tensor-parallel axis; ranks exchange three numbers for each row instead of logits.
#pragma once
#include <functional>

#include "kernels/elementwise/embedding.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/matmul/matmul.h"
#include "models/layers/fp8.h"
#include "models/layers/model_config.h"
#include "models/layers/norm_layer.h"

namespace ltrain {

class Head {
 public:
  /// `embedding`: id of the token embedding, which is also the projection if tied; -1 if this stage has no
  /// embedding: a tied projection is then a copy, with the embedding's weight decay.
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool decay_embeddings, int embedding);
  /// Another reader of y, the final norm's result: adds to dy, and releases y.
  using AlsoReads = std::function<void(Tensor y, Tensor dy)>;
  /// Adds the token losses to mb.loss. In training returns dx, the gradient of the residual stream; otherwise
  /// undefined. `also`: only in training, with 1D tensor parallelism.
  Tensor loss(Step& step, const MicroBatch& mb, Residual& r, const AlsoReads& also = {}) const;
  /// Adds token losses of the projection of y to mb.loss; dy = gradient of y. Called within `also`.
  void loss_of(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const { line_loss(step, mb, y, dy); }
  /// Id of the output layer's weight, or of the score's.
  int weight() const { return weight_; }
  /// out: (n, V) f32 or f64, logits of rows from first_row on of the residual stream. If the tensor axis
  /// shards the vocabulary, they are the rank's own, and zero elsewhere: summands. 1D tensor parallelism
  /// only.
  void logits(Step& step, Residual& r, Tensor out, int64_t first_row) const;
  /// Result of the final norm for the rows of the residual stream; nothing is saved.
  Tensor final_rows(Step& step, Residual& r) const;
  /// out = logits of `rows`, rows of the final norm's result, over this rank's columns.
  void project(const Step& step, Tensor out, Tensor rows) const;
  /// Rows of logits held at a time, for `rows` rows with `vocab` columns on this rank. Chunks are equal, but
  /// multiples of `multiple`: the last one may be smaller.
  static int64_t chunk_rows(const LogitsChunk& chunk, int64_t rows, int64_t vocab, int64_t multiple = 1);
  /// Number whose multiples are the rows of chunks with FP8 matmuls: the alignment that a GPU needs, or the
  /// blocks that have a step.
  static int64_t fp8_chunk_multiple(const Fp8Settings& settings);
  /// Called after declare: logits and their gradients are multiplied in FP8 in steps with FP8, unless
  /// settings.keep excludes the weight, which is otherwise added to `weights`. Not in 2D or 3D.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int slot,
                         std::vector<Fp8Weight>& weights);

 private:
  /// Losses of all rows of y, the norm's result; in training also dy and the weight's gradient.
  void line_loss(Step& step, const MicroBatch& batch, Tensor y, Tensor dy) const;
  /// The losses of a reward model: scores of texts instead of logits.
  void score_loss(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  void loss_2d(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  void loss_3d(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  /// Logits of one chunk, and their gradient, which may be the same tensor.
  struct Logits {
    Tensor values, gradient;
  };
  Logits make_logits(Step& step, int64_t rows) const;
  void release_logits(Step& step, Logits& logits) const;
  bool multiplies_fp8(const Step& step) const { return step.fp8 && fp8_.slot >= 0; }
  /// Rows of a chunk of line_loss.
  int64_t line_chunk_rows(const Step& step, int64_t rows) const;
  /// out = op(a) op(b): x W^T, dy W or dy^T x of one chunk.
  void product(Step& step, Tensor out, Tensor a, Tensor b, const MatmulArgs& args = {}) const;
  /// dx = grad W; with `to` also dW (+)= grad^T x. `first`: the first chunk.
  void chunk_backward(Step& step, Tensor dx, Tensor grad, Tensor x, const GradBuffer* to, bool first) const;
  void weight_done(Step& step) const {
    if (!shares_embedding_) step.params.grad_ready(weight_);
  }
  /// Sums of log-probabilities of the texts of mb.pairs; in training also their losses, and mb.pairs.weights,
  /// which the caller releases. `whole`: all rows of the norm's result. `logits`: room for a chunk.
  void sum_pairs(Step& step, MicroBatch& mb, Tensor whole, Tensor logits) const;
  /// Statistics of a chunk's rows of all ranks that share the vocabulary: (ranks * R, 3).
  Tensor gathered_stats(Step& step, Tensor logits, Tensor targets) const;
  /// own: (R, n), released; returns (ranks * R, n), the rows of all ranks.
  static Tensor of_all_ranks(Step& step, Tensor own);
  /// Loss of one chunk; with `grad` also the gradient of the logits. first_row: row in mb.targets.
  void chunk_loss(Step& step, const MicroBatch& mb, Tensor logits, Tensor targets, int64_t first_row,
                  Tensor grad) const;
  /// Logits of the rows from `first_row` on of a teacher, or of its record and the student's `logits`.
  void teach(Step& step, const MicroBatch& mb, Tensor taught, Tensor logits, Tensor targets,
             int64_t first_row) const;
  /// chunk_loss with a teacher, whose logits are `taught`.
  void chunk_distillation(Step& step, const MicroBatch& mb, Tensor logits, Tensor taught, Tensor targets,
                          Tensor grad) const;

  NormLayer norm_;
  int weight_ = -1;
  bool scores_texts_ = false;
  bool shares_embedding_ = false;  // the embedding's backward completes the gradient
  int64_t vocab_ = 0;              // columns on this rank, padding included
  VocabColumns part_;
  double soft_cap_ = 0;        ///< soft-cap of the logits; 0: none
  Fp8Weight fp8_{.slot = -1};  // slot -1: no FP8
  Fp8Settings fp8_settings_;
  int64_t whole_vocab_ = 0;  // columns on all ranks, without padding
};

/// Token embedding or output projection, (V, H). 1D: rows of the vocabulary over the tensor axis. 2D: rows
/// over row, columns over column. 3D: rows over row and then depth, columns over column.
ParameterSpec vocabulary_weight(const Groups& groups, const ModelConfig& config, const std::string& name);
/// Head of a reward model, (1, H), in full on every rank.
ParameterSpec score_weight(const ModelConfig& config, bool sequence_parallel);
/// Tokens whose rows are on this rank.
VocabPart vocabulary_part(const Groups& groups, const ModelConfig& config);

}  // namespace ltrain
