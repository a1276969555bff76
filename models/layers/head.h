// The final norm, the output projection and the cross-entropy, in chunks of rows: logits of the whole batch
// are never held. When training, a chunk's gradient is taken while its logits are at hand. The vocabulary is
// cut over the inner tensor-parallel axis; its logits never travel, three numbers a row do.
#pragma once
#include <functional>

#include "kernels/elementwise/cross_entropy.h"
#include "kernels/elementwise/embedding.h"
#include "models/layers/model_config.h"
#include "models/layers/norm_layer.h"

namespace ltrain {

class Head {
 public:
  /// `embedding`: id of the token embedding, which is the projection too when tied; -1 when this stage has no
  /// embedding: a tied projection is then a copy, which decays as the embedding does.
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool decay_embeddings, int embedding);
  /// What reads y, the final norm's result, beside the output layer: adds to dy, and gives y back.
  using AlsoReads = std::function<void(Tensor y, Tensor dy)>;
  /// Adds the token losses to mb.loss. When training returns dx, the gradient of the residual stream;
  /// undefined else. `also`: in training, on one-dimensional tensor parallelism.
  Tensor loss(Step& step, const MicroBatch& mb, Residual& r, const AlsoReads& also = {}) const;
  /// Of what is projected from y: adds token losses to mb.loss; dy := gradient of y. Within `also`.
  void loss_of(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const { line_loss(step, mb, y, dy); }
  /// Id of the output layer's weight.
  int weight() const { return weight_; }
  /// out: (n, V) f32 or f64, logits of rows first_row.. of the residual stream. Where the tensor axis cuts
  /// the vocabulary they are the rank's own, and zero elsewhere: summands. One-dimensional tensor
  /// parallelism.
  void logits(Step& step, Residual& r, Tensor out, int64_t first_row) const;
  /// Rows of logits held at a time, of `rows` with `vocab` columns here; rows are cut evenly.
  static int64_t chunk_rows(const LogitsChunk& chunk, int64_t rows, int64_t vocab);

 private:
  /// Losses of all rows of y, the norm's result; when training also dy and the weight's gradient.
  void line_loss(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  void loss_2d(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  void loss_3d(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  /// Of one chunk, and their gradient, which may be the same tensor.
  struct Logits {
    Tensor values, gradient;
  };
  Logits make_logits(Step& step, int64_t rows) const;
  void release_logits(Step& step, Logits& logits) const;
  void weight_done(Step& step) const {
    if (!shares_embedding_) step.params.grad_ready(weight_);
  }
  /// Loss of one chunk; with `grad` its gradient by the logits too. first_row: of mb.targets.
  void chunk_loss(Step& step, const MicroBatch& mb, Tensor logits, Tensor targets, int64_t first_row,
                  Tensor grad) const;

  NormLayer norm_;
  int weight_ = -1;
  bool shares_embedding_ = false;  // the gradient is completed by the embedding's backward
  int64_t vocab_ = 0;              // columns on this rank, padding included
  VocabColumns part_;
  double soft_cap_ = 0;  ///< of the logits; 0: none
};

/// Token embedding or output projection, (V, H): by rows of the vocabulary over the tensor axis; grid: over
/// row, and columns over column; cube: over row and then depth, and columns over column.
ParameterSpec vocabulary_weight(const Groups& groups, const ModelConfig& config, const std::string& name);
/// Tokens whose rows this rank looks up.
VocabPart vocabulary_part(const Groups& groups, const ModelConfig& config);

}  // namespace ltrain
