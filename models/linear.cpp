#include "models/linear.h"

#include "kernels/ops/matmul.h"
#include "kernels/ops/tensor_ops.h"

namespace ltrain {

void Linear::declare(ParameterStore& store, const std::vector<std::string>& names,
                     const std::vector<int64_t>& rows, int64_t in, bool bias, double std) {
  std::vector<ParameterSpec> weights, biases;
  out_ = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    weights.push_back({names[i] + ".weight", {rows[i], in}, Init::normal, std, true});
    biases.push_back({names[i] + ".bias", {rows[i]}, Init::zeros, 0, false});
    out_ += rows[i];
  }
  parts_ = static_cast<int>(names.size());
  weight_ = store.add(std::move(weights));
  if (bias) bias_ = store.add(std::move(biases));
}

void Linear::forward(Step& step, Tensor y, Tensor x) const {
  MatmulArgs args;
  args.trans_b = true;
  if (bias_ >= 0) args.bias = step.params.value(bias_, parts_);
  matmul(step.compute, y, x, step.params.value(weight_, parts_), args);
}

void Linear::backward(Step& step, Tensor dx, Tensor dy, Tensor x) const {
  if (dx.defined()) matmul(step.compute, dx, dy, step.params.value(weight_, parts_));
  MatmulArgs args;
  args.trans_a = true;
  args.accumulate = step.params.accumulating();
  matmul(step.compute, step.params.grad(weight_, parts_), dy, x, args);
  step.params.grad_ready(weight_, parts_);
  if (bias_ >= 0) {
    sum_rows(step.compute, step.params.grad(bias_, parts_), dy, step.params.accumulating());
    step.params.grad_ready(bias_, parts_);
  }
}

}  // namespace ltrain
