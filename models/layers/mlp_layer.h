// The feed-forward sublayer: SwiGLU or GELU (ModelTraits::feed_forward).
#pragma once
#include "models/layers/linear.h"
#include "models/layers/model_config.h"

namespace ltrain {

class MlpLayer {
 public:
  struct Saved {
    Tensor hidden;  ///< before the activation function
    Tensor act;     ///< after it; in FP8 codes of the transpose where a backward follows
  };
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               const std::string& prefix, double out_std);
  /// Linear::quantize_operands for the layer. `first_slot`: first slot of the block.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                         std::vector<Fp8Weight>& weights);
  int input_slot() const { return up_.input_slot(); }              ///< Linear::input_slot
  int hidden_sections() const { return has_gate(kind_) ? 2 : 1; }  ///< equal runs of columns of Saved::hidden
  /// `rows`: rows of the micro-batch; every tensor rank computes its columns for all of them. y undefined:
  /// computes only the tensors for backward.
  void forward(Step& step, Tensor y, Tensor x, int64_t rows, Saved& saved) const;
  /// Recomputes the missing tensors of `saved`.
  void recompute(Step& step, Tensor x, int64_t rows, Saved& saved) const;
  /// dx = gradient of x. Releases `saved`.
  void backward(Step& step, Tensor dx, Tensor dy, Tensor x, Saved& saved) const;

 private:
  /// Computes the missing tensors of `saved`. Result: codes for down_'s forward where saved.act has those of
  /// the transpose, which the caller releases.
  Tensor activate(Step& step, Tensor x, int64_t rows, Saved& saved) const;
  /// Gradient of `hidden`, which it overwrites, or new codes of it where up_ takes them. `bias`: where
  /// defined, the sums of its columns are added to it.
  Tensor hidden_gradient(Step& step, Tensor dact, Tensor hidden, const GradBuffer& bias) const;
  Linear up_, down_;
  FeedForward kind_ = FeedForward::swiglu;
  int64_t intermediate_ = 0;  // on this rank
};

}  // namespace ltrain
