// One module of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2), a layer behind the last:
// module k = 1.. reads, at position i, what the module before gives there (the first one: the result of the
// model's final norm, as Megatron-LM does) and the embedding of token i + k, and its result predicts token
// i + k + 1 by the model's own output layer:
//   x = projection [norm(embedding), norm(before)];  y = norm(block(x))
#pragma once
#include "models/decoder/block.h"

namespace ltrain {

class PredictionModule {
 public:
  struct Saved {
    NormLayer::Saved embedding, hidden, output;
    Tensor joined;  ///< (stream rows, 2 H): what the projection reads
    Block::Saved block;
  };
  /// `layer`: its number, behind the last of the model's.
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool expert_tensor, const DispatchOptions& dispatch, int64_t layer);
  /// embedded: (stream rows, H), taken over; before: likewise, which backward releases. Returns y.
  Tensor forward(Step& step, const MicroBatch& mb, Tensor embedded, Tensor before, Tensor rope_table,
                 Saved& saved) const;
  /// dy: taken over. dbefore += its gradient. Returns the gradient of what was embedded.
  Tensor backward(Step& step, const MicroBatch& mb, Tensor dy, Tensor dbefore, Tensor rope_table,
                  Saved& saved) const;

 private:
  NormLayer embedding_norm_, hidden_norm_, output_norm_;
  Linear projection_;
  Block block_;
  std::string place_;
};

}  // namespace ltrain
