// A decoder-only transformer: embedding, blocks, head; whole, or the stages of it that a pipeline rank has.
#pragma once
#include <vector>

#include "kernels/elementwise/embedding.h"
#include "models/decoder/block.h"
#include "models/decoder/multi_token_prediction.h"
#include "models/layers/head.h"

namespace ltrain {

/// Consecutive layers that one pipeline stage computes.
struct StageLayers {
  int64_t first = 0, count = 0;
  bool embeds = false, heads = false;  ///< has the embedding; has the final norm, projection and loss
};

struct DecoderOptions {
  bool sequence_parallel = false;
  DispatchOptions dispatch;         ///< of MoE models
  bool expert_tensor = true;        ///< tensor ranks share each expert; else they have experts of their own
  bool decay_embeddings = true;     ///< weight decay applies to embeddings too
  std::vector<StageLayers> stages;  ///< of this rank, in order; empty: one that has everything
  RecomputeOptions recompute;
  ActivationOffloadOptions offload;
};

class Decoder {
 public:
  /// What the forward of one micro-batch through one stage leaves for its backward.
  struct Saved {
    std::vector<Block::Saved> blocks;
    Tensor dx;  ///< the last stage's: gradient of the residual stream after the last block
  };

  /// Declares all parameters of the stages in `store`.
  Decoder(const ModelConfig& config, ParameterStore& store, const Groups& groups,
          const DecoderOptions& options);
  const ModelConfig& config() const { return config_; }
  /// The linear layers of blocks multiply in FP8 where a step has them: the weights of those that do.
  std::vector<Fp8Weight> quantize_operands(const ParameterStore& store, const Fp8Settings& settings);
  /// Segments of the store: the embedding, the layers, the head.
  static int segments(const ModelConfig& config) { return static_cast<int>(config.all_layers()) + 2; }
  int stage_count() const { return static_cast<int>(stages_.size()); }
  const StageLayers& stage(int i) const { return stages_[i]; }

  /// Allocates constant tables (RoPE) for sequences of `seq` tokens; with `texts` for shorter ones too, whose
  /// angles may be others (rope_row).
  void allocate(Stream& compute, Memory& memory, int64_t seq, bool texts);
  /// Row of the tables for position 0 of a text of `length` tokens; positions follow.
  int64_t rope_row(int64_t length) const { return length > 0 && length <= short_texts_ ? table_rows_ : 0; }

  /// `input`: (stream rows, H) from the stage before, taken over (its memory is given back when it is no
  /// longer needed); undefined where the stage embeds. Returns the output, or undefined where it has the
  /// head: the loss is then added to mb.loss, or with step.generation its logits are written. Without
  /// step.training nothing is saved.
  Tensor forward(Step& step, const MicroBatch& mb, int stage, Tensor input, Saved& saved) const;
  /// `dout`: gradient of the output, taken over; undefined where the stage has the head. Returns the gradient
  /// of the input, undefined where the stage embeds. Gradients of parameters go to the store.
  Tensor backward(Step& step, const MicroBatch& mb, int stage, Tensor dout, Saved& saved) const;

 private:
  static constexpr int kEmbedding = 0;
  static int layer_segment(int64_t layer) { return static_cast<int>(layer) + 1; }
  int head_segment() const { return segments(config_) - 1; }
  void declare_embedding(ParameterStore& store, const Groups& groups, bool decay);
  ParameterSpec token_table(const Groups& groups, bool decay) const;
  void declare_head(ParameterStore& store, const Groups& groups, const DecoderOptions& options);
  void embed(Step& step, const MicroBatch& mb, Residual& r) const;
  /// x := rows of the token table `table`, and positions where given; its gradient.
  void look_up(Step& step, const MicroBatch& mb, Tensor x, int table, Tensor positions,
               const RowMap& rows) const;
  void look_up_backward(Step& step, const MicroBatch& mb, Tensor dx, int table) const;
  /// Multi-token prediction, forward and backward at once: y, the final norm's result, is given back, and
  /// dy += its gradient.
  void predict_more(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  void look_up_cut(Step& step, const MicroBatch& mb, Tensor x) const;
  void look_up_cut_backward(Step& step, const MicroBatch& mb, Tensor dx) const;
  /// Rounded to fp32, as transformers keeps it.
  double embedding_scale() const;
  void embed_backward(Step& step, const MicroBatch& mb, Tensor dx) const;
  /// Before the backward of a run of layers: what their forward did not keep.
  void recompute_run(Step& step, const MicroBatch& mb, const StageLayers& s, const LayerRun& run,
                     Saved& saved) const;
  void run_blocks(Step& step, const MicroBatch& mb, int stage, Residual& r, Saved& saved) const;

  ModelConfig config_;
  std::vector<StageLayers> stages_;
  RecomputeOptions recompute_;
  ActivationOffloadOptions offload_;
  int tokens_ = -1, positions_ = -1;
  VocabPart vocab_;
  std::vector<Block> blocks_;  // by layer; only those of this rank's stages are declared
  bool has_embedding_ = false;
  bool sequence_parallel_ = false;
  Head head_;
  std::vector<PredictionModule> modules_;  // of the stage that has the head
  int modules_tokens_ = -1;                // table that they look up: the embedding, or a copy of it
  double modules_scale_ = 0;
  /// Of a layer, by its base of rotary angles.
  Tensor rope_table(int64_t layer) const {
    return config_.rotates_locally(layer) ? local_rope_table_ : rope_table_;
  }
  Tensor rope_table_, local_rope_table_;
  int64_t table_rows_ = 0;   // of sequences as long as they can be; those of short texts are behind them
  int64_t short_texts_ = 0;  // tokens of the longest text that has rows of its own
};

}  // namespace ltrain
