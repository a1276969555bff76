// The feed-forward sublayer: SwiGLU (llama) or GELU (gpt2).
#pragma once
#include "models/linear.h"
#include "models/model_config.h"

namespace ltrain {

class MlpLayer {
 public:
  struct Saved {
    Tensor hidden, act;  ///< before and after the non-linearity
  };
  void declare(ParameterStore& store, const ModelConfig& config, const std::string& prefix, double out_std);
  void forward(Step& step, Tensor y, Tensor x, Saved& saved) const;
  /// dx = gradient of x. Releases saved.
  void backward(Step& step, Tensor dx, Tensor dy, Tensor x, Saved& saved) const;

 private:
  Linear up_, down_;
  bool gated_ = false;
  int64_t intermediate_ = 0;
};

}  // namespace ltrain
