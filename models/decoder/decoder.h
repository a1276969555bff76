// A decoder-only transformer: embedding, blocks, head; the full model, or the stages of a pipeline rank.
#pragma once
#include <vector>

#include "kernels/elementwise/embedding.h"
#include "models/decoder/block.h"
#include "models/decoder/multi_token_prediction.h"
#include "models/layers/head.h"

namespace ltrain {

/// Consecutive layers of one pipeline stage.
struct StageLayers {
  int64_t first = 0, count = 0;
  bool embeds = false, heads = false;  ///< has the embedding; has the final norm, projection and loss
};

struct DecoderOptions {
  bool sequence_parallel = false;
  DispatchOptions dispatch;         ///< for MoE models
  bool expert_tensor = true;        ///< tensor ranks share each expert; otherwise each has its own experts
  bool decay_embeddings = true;     ///< weight decay also applies to embeddings
  std::vector<StageLayers> stages;  ///< stages of this rank, in order; empty: one stage with everything
  RecomputeOptions recompute;
  ActivationOffloadOptions offload;
};

class Decoder {
 public:
  /// Saved data of one micro-batch and stage between forward and backward.
  struct Saved {
    std::vector<Block::Saved> blocks;
    Tensor dx;  ///< the last stage's: gradient of the residual stream after the last block
  };

  /// Declares all parameters of the stages in `store`.
  Decoder(const ModelConfig& config, ParameterStore& store, const Groups& groups,
          const DecoderOptions& options);
  const ModelConfig& config() const { return config_; }
  /// Makes linear layers of blocks, and with settings.output_layer the output layer, multiply in FP8 in steps
  /// with FP8. Returns their weights.
  std::vector<Fp8Weight> quantize_operands(const ParameterStore& store, const Fp8Settings& settings);
  /// Segments of the store: the embedding, the layers, the head.
  static int segments(const ModelConfig& config) { return static_cast<int>(config.all_layers()) + 2; }
  int stage_count() const { return static_cast<int>(stages_.size()); }
  const StageLayers& stage(int i) const { return stages_[i]; }

  /// Allocates constant tables (RoPE) for sequences of `seq` tokens; with `texts` also for shorter ones,
  /// whose angles may differ (rope_row).
  void allocate(Stream& compute, Memory& memory, int64_t seq, bool texts);
  /// Row of the tables for position 0 of a text of `length` tokens; later positions follow it.
  int64_t rope_row(int64_t length) const { return length > 0 && length <= short_texts_ ? table_rows_ : 0; }

  /// `input`: (stream rows, H) from the stage before; ownership passes to this call, which releases it.
  /// Undefined if the stage embeds. Returns the output, or undefined if the stage has the head, which adds
  /// the loss to mb.loss, or with step.generation writes its logits. Without step.training nothing is saved.
  Tensor forward(Step& step, const MicroBatch& mb, int stage, Tensor input, Saved& saved) const;
  /// Result of the final norm, (stream rows, H), of a model in one stage; nothing is saved.
  Tensor final_rows(Step& step, const MicroBatch& mb) const;
  /// Gathers and releases the weights of the output layer, between which head().project() makes logits from
  /// rows of final_rows.
  void gather_head(Step& step) const;
  void release_head(Step& step) const;
  const Head& head() const { return head_; }
  /// `dout`: gradient of the output; ownership passes to this call. Undefined if the stage has the head.
  /// Returns the gradient of the input, undefined if the stage embeds. Gradients of parameters go to the
  /// store.
  Tensor backward(Step& step, const MicroBatch& mb, int stage, Tensor dout, Saved& saved) const;

 private:
  static constexpr int kEmbedding = 0;
  static int layer_segment(int64_t layer) { return static_cast<int>(layer) + 1; }
  int head_segment() const { return segments(config_) - 1; }
  void declare_embedding(ParameterStore& store, const Groups& groups, bool decay);
  ParameterSpec token_table(const Groups& groups, bool decay) const;
  void declare_head(ParameterStore& store, const Groups& groups, const DecoderOptions& options);
  void embed(Step& step, const MicroBatch& mb, Residual& r) const;
  /// x = rows of the token table `table`, plus positions if given; look_up_backward: its gradient.
  void look_up(Step& step, const MicroBatch& mb, Tensor x, int table, Tensor positions,
               const RowMap& rows) const;
  void look_up_backward(Step& step, const MicroBatch& mb, Tensor dx, int table) const;
  /// Multi-token prediction, forward and backward at once: dy += gradient of y, the final norm's result.
  /// Releases y.
  void predict_more(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const;
  void look_up_cut(Step& step, const MicroBatch& mb, Tensor x) const;
  void look_up_cut_backward(Step& step, const MicroBatch& mb, Tensor dx) const;
  /// Rounded to fp32, as in transformers.
  double embedding_scale() const;
  void embed_backward(Step& step, const MicroBatch& mb, Tensor dx) const;
  /// Recomputes the dropped tensors of a run of layers before its backward.
  void recompute_run(Step& step, const MicroBatch& mb, const StageLayers& s, const LayerRun& run,
                     Saved& saved) const;
  void run_blocks(Step& step, const MicroBatch& mb, int stage, Residual& r, Saved& saved) const;

  ModelConfig config_;
  std::vector<StageLayers> stages_;
  RecomputeOptions recompute_;
  ActivationOffloadOptions offload_;
  int tokens_ = -1, positions_ = -1;
  VocabPart vocab_;
  std::vector<Block> blocks_;  // indexed by layer; only layers of this rank's stages are declared
  bool has_embedding_ = false;
  bool sequence_parallel_ = false;
  Head head_;
  std::vector<PredictionModule> modules_;  // on the stage with the head
  int modules_tokens_ = -1;                // their token table: the embedding, or a copy of it
  double modules_scale_ = 0;
  /// Table of a layer, by its base of rotary angles.
  Tensor rope_table(int64_t layer) const {
    return config_.rotates_locally(layer) ? local_rope_table_ : rope_table_;
  }
  Tensor rope_table_, local_rope_table_;
  int64_t table_rows_ = 0;   // rows for the longest sequences; rows for short texts follow
  int64_t short_texts_ = 0;  // longest text, in tokens, with its own rows
};

}  // namespace ltrain
