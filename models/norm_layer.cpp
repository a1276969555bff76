#include "models/norm_layer.h"

namespace ltrain {

void NormLayer::declare(ParameterStore& store, const std::string& name, NormKind kind, int64_t cols,
                        double eps, bool sequence_parallel) {
  kind_ = kind;
  eps_ = eps;
  ParameterSpec weight{name + ".weight", {cols}, Init::ones, 0, false};
  ParameterSpec bias{name + ".bias", {cols}, Init::zeros, 0, false};
  weight.sum_tensor = bias.sum_tensor = sequence_parallel;  // each rank norms rows of its own
  weight_ = store.add({weight});
  if (kind == NormKind::layer) bias_ = store.add({bias});
}

void NormLayer::forward(Step& step, Residual& r, Saved& saved) const {
  const Shape shape = r.x.shape;
  NormForward a;
  a.kind = kind_;
  a.eps = eps_;
  a.x = r.x;
  a.weight = step.params.value(weight_);
  if (bias_ >= 0) a.bias = step.params.value(bias_);
  saved.x = r.x;
  if (r.delta.defined()) {
    a.delta = r.delta;
    a.dropout = r.dropout;
    saved.x = a.sum = step.activation("residual", shape);
  }
  saved.y = a.y = step.activation("norm", shape);
  saved.rstd = a.rstd = step.statistic("rstd", {shape[0]});
  if (kind_ == NormKind::layer) saved.mean = a.mean = step.statistic("mean", {shape[0]});
  norm_forward(step.compute, a);
  if (r.delta.defined()) {
    step.release(r.delta);
    if (!step.training) step.release(r.x);
  }
  r.x = saved.x;
  if (!step.training) {
    step.release(saved.rstd);
    step.release(saved.mean);
  }
}

void NormLayer::backward(Step& step, Tensor dx, Tensor dy, Saved& saved, bool first) const {
  NormBackward b;
  b.kind = kind_;
  b.dy = dy;
  b.x = saved.x;
  b.weight = step.params.value(weight_);
  b.mean = saved.mean;
  b.rstd = saved.rstd;
  b.dx = dx;
  const GradTarget weight = step.params.contribute(weight_);
  b.dweight = weight.tensor;
  b.accumulate = weight.accumulate;
  if (bias_ >= 0) b.dbias = step.params.contribute(bias_).tensor;
  b.first = first;
  norm_backward(step.compute, b);
  step.params.grad_ready(weight_);
  if (bias_ >= 0) step.params.grad_ready(bias_);
  step.release(saved.rstd);
  step.release(saved.mean);
  step.release(saved.x);
}

}  // namespace ltrain
