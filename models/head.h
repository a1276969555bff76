// The final norm, the output projection and the cross-entropy, in chunks of rows: logits of the whole batch
// are never held. When training, a chunk's gradient is taken while its logits are at hand.
#pragma once
#include "models/model_config.h"
#include "models/norm_layer.h"

namespace ltrain {

class Head {
 public:
  /// `embedding`: id of the token embedding, which is the projection too when tied.
  void declare(ParameterStore& store, const ModelConfig& config, int embedding);
  /// Adds the token losses to mb.loss. When training returns dx, the gradient of the residual stream;
  /// undefined else.
  Tensor loss(Step& step, const MicroBatch& mb, Residual& r) const;
  /// out: (n, V) f32, logits of rows first_row.. of the residual stream.
  void logits(Step& step, Residual& r, Tensor out, int64_t first_row) const;
  /// Rows of logits held at a time.
  static int64_t chunk_rows(int64_t rows, int64_t vocab);

 private:
  NormLayer norm_;
  int weight_ = -1;
  bool tied_ = false;
  int64_t vocab_ = 0;
};

}  // namespace ltrain
