// Causal self-attention: fused qkv, rotary or learned positions, output projection.
#pragma once
#include "kernels/norm/head_norm.h"
#include "models/attention/context_attention.h"
#include "models/attention/latent_projections.h"
#include "models/layers/linear.h"
#include "models/layers/model_config.h"

namespace ltrain {

class AttentionLayer {
 public:
  struct Saved : AttentionSaved {
    Tensor query, key, query_rstd, key_rstd;  ///< inputs of the head norms
    LatentProjections::Saved latent;
  };
  /// `prefix`: "model.layers.3.self_attn". `place`: the layer's name for dropout, plans and messages.
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               const std::string& prefix, std::string place, double out_std, int64_t layer);
  /// Linear::quantize_operands for the layer. `first_slot`: first slot of the block.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                         std::vector<Fp8Weight>& weights);
  int input_slot() const { return qkv_.input_slot(); }  ///< Linear::input_slot
  /// y: (stream rows, H) = attention of x. Fills `saved` if the step keeps.
  void forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Tensor rope_table, Saved& saved) const;
  /// Recomputes the missing tensors of `saved`.
  void recompute(Step& step, const MicroBatch& mb, Tensor x, Tensor rope_table, Saved& saved) const;
  /// y from `saved`.
  void output(Step& step, Tensor y, const Saved& saved) const;
  /// dx: (stream rows, H) = gradient of x. Releases `saved`. `x` is the input of forward.
  void backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x, Tensor rope_table,
                Saved& saved) const;

 private:
  AttentionShape shape(const MicroBatch& mb) const;
  /// Appends keys and values of saved.qkv to those of the step's texts; saved.out is attention of the queries
  /// over all of them.
  void extend(Step& step, const MicroBatch& mb, Saved& saved) const;
  /// qkv = projections of x; project_backward: its gradients.
  void project(Step& step, Tensor qkv, Tensor x, Saved& saved) const;
  void project_backward(Step& step, Tensor dx, Tensor dqkv, Tensor x, Saved& saved,
                        const Gathered& ahead) const;
  void rotate(Step& step, const MicroBatch& mb, Tensor qkv, Tensor rope_table, bool inverse) const;
  /// Norms of queries and keys, in place in qkv.
  void declare_norms(ParameterStore& store, const Groups& groups, const ModelConfig& config,
                     const std::string& prefix);
  void norm(Step& step, Tensor qkv, Saved& saved) const;
  void norm_backward(Step& step, Tensor dqkv, Saved& saved) const;
  void cut_norm(Step& step, Tensor qkv, const HeadNorm& part, int weight, Tensor x, Tensor rstd) const;
  void cut_norm_backward(Step& step, Tensor dqkv, const HeadNorm& part, int weight, Tensor x,
                         Tensor rstd) const;
  void declare_sinks(ParameterStore& store, const Groups& groups, const ModelConfig& config,
                     const std::string& prefix);
  /// Undefined without sinks.
  Tensor sinks(const Step& step) const { return sinks_ < 0 ? Tensor() : step.params.value(sinks_); }
  /// Gradients of queries and keys become 0 where these were clamped.
  void clip_heads(Step& step, Tensor dqkv, const Saved& saved) const;
  HeadNorm queries() const;
  HeadNorm keys() const;
  Linear qkv_, out_;
  Linear kv_;                  // separate from q if several tensor ranks hold one key-value head
  LatentProjections latents_;  // instead of qkv_ and kv_
  bool latent_ = false, interleaved_ = false;
  int64_t value_dim_ = 0;
  int copies_ = 1;                                   // tensor ranks with the same key-value head
  int64_t heads_ = 0, kv_heads_ = 0, head_dim_ = 0;  // on this rank
  int64_t first_head_ = 0, all_heads_ = 0;
  double dropout_ = 0;
  bool rope_ = false;
  int64_t window_ = 0;  // AttentionShape values, also the next two
  double scale_ = 0, soft_cap_ = 0;
  double clip_ = 0;  // 0: none
  int64_t layer_ = 0;
  QueryKeyNorm norm_kind_ = QueryKeyNorm::none;
  bool norm_cut_ = false;  // tensor ranks share the columns of the norm
  int query_norm_ = -1, key_norm_ = -1, sinks_ = -1;
  double norm_eps_ = 0, norm_offset_ = 0;
  std::string place_;
};

}  // namespace ltrain
