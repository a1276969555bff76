// A decoder-only transformer: embedding, blocks, head. The whole forward and backward of one micro-batch.
#pragma once
#include <vector>

#include "models/block.h"
#include "models/head.h"

namespace ltrain {

class Decoder {
 public:
  /// Declares all parameters in `store`. `decay_embeddings`: weight decay applies to embeddings too.
  Decoder(const ModelConfig& config, ParameterStore& store, bool decay_embeddings = true);
  const ModelConfig& config() const { return config_; }

  /// Allocates constant tables (RoPE) for sequences of up to `seq`.
  void allocate(Stream& compute, Memory& memory, int64_t seq);

  /// Forward and backward: adds the loss to mb.loss and gradients to the store. step.training is true.
  void train(Step& step, const MicroBatch& mb) const;
  /// Forward only: adds the loss to mb.loss.
  void evaluate(Step& step, const MicroBatch& mb) const;
  /// logits: (n, V) f32 of rows first_row.. of the micro-batch.
  void predict(Step& step, const MicroBatch& mb, Tensor logits, int64_t first_row) const;

 private:
  void embed(Step& step, const MicroBatch& mb, Residual& r) const;
  void embed_backward(Step& step, const MicroBatch& mb, Tensor dx) const;

  ModelConfig config_;
  int tokens_ = -1, positions_ = -1;
  std::vector<Block> blocks_;
  Head head_;
  Tensor rope_table_;
};

/// cos and sin of RoPE for positions 0..seq-1, (seq, head_dim / 2, 2), Llama-3 scaling applied.
std::vector<float> rope_angles(const ModelConfig& config, int64_t seq);

}  // namespace ltrain
