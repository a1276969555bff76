// y = x W^T + b, for one parameter or several that are contiguous (q, k, v; gate and up).
#pragma once
#include "models/step.h"

namespace ltrain {

class Linear {
 public:
  /// Declares weights names[i] (rows[i], in) and, with `bias`, biases. std: of the initial weights.
  void declare(ParameterStore& store, const std::vector<std::string>& names, const std::vector<int64_t>& rows,
               int64_t in, bool bias, double std);
  int64_t out_features() const { return out_; }
  /// x: (T, in), y: (T, out).
  void forward(Step& step, Tensor y, Tensor x) const;
  /// dx = dy W when dx is defined; dW (+)= dy^T x; db (+)= column sums of dy. Marks the gradients ready.
  void backward(Step& step, Tensor dx, Tensor dy, Tensor x) const;

 private:
  int weight_ = -1, bias_ = -1, parts_ = 0;
  int64_t out_ = 0;
};

}  // namespace ltrain
