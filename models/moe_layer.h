// A mixture of experts in the place of the feed-forward: router, experts (SwiGLU), experts that are shared.
#pragma once
#include "models/expert_exchange.h"
#include "models/mlp_layer.h"
#include "models/router.h"

namespace ltrain {

/// Of the names of a layer's router and experts.
std::string mixture_prefix(const ModelConfig& config, int64_t layer);

class MoeLayer {
 public:
  struct Saved {
    Router::Saved router;
    ExpertRowCounts counts;
    Tensor rows;         ///< (most rows, H) of this rank's experts, sorted by them
    Tensor hidden, act;  ///< (most rows, 2F) and (most rows, F): before and after the non-linearity
    Tensor out;          ///< (assignments, H) what experts made of this rank's tokens
    MlpLayer::Saved shared;
    Tensor shared_out;          ///< (tokens, H) before its gate
    Router::Saved shared_gate;  ///< of one expert, whose score is the gate
  };
  /// Names are those of Hugging Face but for the experts, which are one tensor of each kind: gate_up_proj
  /// (experts, 2, F, H) and down_proj (experts, H, F).
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool expert_tensor, const std::string& prefix, int64_t layer, double out_std);
  void forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved) const;
  /// dx = gradient of x. Releases saved.
  void backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x, Saved& saved) const;

 private:
  /// Tensor ranks share each expert: every one has all rows and a part of the hidden units.
  bool cut_experts(const Step& step) const { return expert_tensor_ && step.groups.tensor.many(); }
  Tensor whole(Step& step, Tensor x) const;
  void run_experts(Step& step, Saved& saved, Tensor out) const;
  void experts_backward(Step& step, Tensor drows, Tensor dout, Saved& saved) const;
  void weights_backward(Step& step, const ExpertRowCounts& counts, Tensor rows, Tensor dhidden, Tensor act,
                        Tensor dout) const;
  void declare_shared(ParameterStore& store, const Groups& groups, const ModelConfig& config,
                      bool sequence_parallel, const std::string& prefix, int64_t layer, double out_std);
  void shared_forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved) const;
  void shared_backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x, Saved& saved) const;

  Router router_, shared_gate_;
  MlpLayer shared_;
  int gate_up_ = -1, down_ = -1;
  int64_t experts_ = 0, top_k_ = 0, intermediate_ = 0;
  bool expert_tensor_ = true, has_shared_ = false, has_shared_gate_ = false;
  std::string place_;
};

}  // namespace ltrain
