// Queries, keys and values of multi-head latent attention (MLA: DeepSeek-V2, arXiv:2405.04434). x is
// projected to a narrow latent of queries and one of keys and values. Each is normalized, and heads are
// projections of these. Some channels of each head rotate; those of its key are a projection of x that all
// heads share.
#pragma once
#include "kernels/attention/latent_heads.h"
#include "models/layers/linear.h"
#include "models/layers/model_config.h"
#include "models/layers/norm_layer.h"

namespace ltrain {

/// Tensor ranks have their own heads; each has full latents of its rows of the stream.
class LatentProjections {
 public:
  struct Saved {
    NormLayer::Saved query, key_value;  ///< latents before and after their norms
  };
  /// `prefix`: "model.layers.3.self_attn".
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               const std::string& prefix);
  LatentHeads heads() const { return heads_; }  ///< heads of this rank
  /// qkv (full rows, heads().qkv_width()) in the layout of kernels/attention/latent_heads.h, from x (stream
  /// rows, H).
  void forward(Step& step, Tensor qkv, Tensor x, Saved& saved) const;
  /// dx = gradient of x. Releases `saved`.
  void backward(Step& step, Tensor dx, Tensor dqkv, Tensor x, Saved& saved) const;

 private:
  /// y = up(norm(down(x))).
  void through(Step& step, const Linear& down, const NormLayer& norm, const Linear& up, Tensor y, Tensor x,
               NormLayer::Saved& saved) const;
  void through_backward(Step& step, const Linear& down, const NormLayer& norm, const Linear& up, Tensor dx,
                        Tensor dy, Tensor x, NormLayer::Saved& saved) const;
  Linear query_down_, query_up_;  // without a latent of queries: query_up_ of x
  Linear key_value_down_, key_rope_, key_value_up_;
  NormLayer query_norm_, key_value_norm_;
  bool query_latent_ = false;
  LatentHeads heads_;
};

}  // namespace ltrain
