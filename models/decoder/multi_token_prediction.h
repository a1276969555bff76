// One module of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2), a layer behind the last.
// Module k = 1.. reads, at position i, the output of the module before (the first one: the model's final
// norm, as in Megatron-LM) and the embedding of token i + k. Its result predicts token i + k + 1 by the
// model's output layer:
//   x = projection [norm(embedding), norm(before)];  y = norm(block(x))
#pragma once
#include "models/decoder/block.h"

namespace ltrain {

class PredictionModule {
 public:
  struct Saved {
    NormLayer::Saved embedding, hidden, output;
    Tensor joined;  ///< (stream rows, 2 H): input of the projection
    Block::Saved block;
  };
  /// `layer`: its number, after the model's layers.
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool expert_tensor, const DispatchOptions& dispatch, int64_t layer);
  /// embedded: (stream rows, H), owned by this call; before: (stream rows, H), released by backward. Returns
  /// y.
  Tensor forward(Step& step, const MicroBatch& mb, Tensor embedded, Tensor before, Tensor rope_table,
                 Saved& saved) const;
  /// dy: owned by this call. dbefore += its gradient. Returns the gradient of `embedded`.
  Tensor backward(Step& step, const MicroBatch& mb, Tensor dy, Tensor dbefore, Tensor rope_table,
                  Saved& saved) const;

 private:
  NormLayer embedding_norm_, hidden_norm_, output_norm_;
  Linear projection_;
  Block block_;
  std::string place_;
};

}  // namespace ltrain
