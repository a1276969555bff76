#include "models/layers/mlp_layer.h"

#include "kernels/matmul/swiglu_fp8.h"
#include "models/layers/feed_forward.h"

namespace ltrain {

void MlpLayer::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                       bool sequence_parallel, const std::string& prefix, double out_std) {
  intermediate_ = c.intermediate_size / groups.inner().size();
  kind_ = c.traits().feed_forward;
  const ParameterNames& names = c.names();
  const bool bias = c.traits().feed_forward_bias;
  const int64_t f = c.intermediate_size, h = c.hidden_size;
  LT_CHECK(intermediate_ * groups.inner().size() == f,
           "expected intermediate_size divisible over {} tensor-parallel ranks, got {}",
           groups.inner().size(), f);
  std::vector<LinearPart> up;
  const auto add = [&](const std::string& name, int64_t first) {
    if (names.fused_gate_up.empty())
      up.push_back({prefix + "." + name, f});
    else
      up.push_back({prefix + "." + names.fused_gate_up, f, first, 2 * f});
  };
  if (has_gate(kind_)) add(names.gate, 0);
  add(names.up, f);
  up_.declare(store, groups, sequence_parallel, up, h, bias, c.initializer_range, LinearSharding::column,
              c.lora);
  down_.declare(store, groups, sequence_parallel, {{prefix + "." + names.down, h}}, f, bias, out_std,
                LinearSharding::row, c.lora);
}

void MlpLayer::quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                                 std::vector<Fp8Weight>& weights) {
  up_.quantize_operands(store, settings, fp8_slot(first_slot, Fp8Linear::up), weights);
  down_.quantize_operands(store, settings, fp8_slot(first_slot, Fp8Linear::down), weights,
                          /*transposed_input=*/true);
}

void MlpLayer::forward(Step& step, Tensor y, Tensor x, int64_t rows, Saved& saved) const {
  Tensor plain = activate(step, x, rows, saved);
  if (!step.keeps()) step.release(saved.hidden);
  if (step.batch && step.batch->observer) step.batch->observer->neurons(step.compute, saved.act);
  if (y.defined()) down_.forward(step, y, plain.defined() ? plain : saved.act);
  step.release(plain);
  if (!step.keeps()) step.release(saved.act);
}

void MlpLayer::recompute(Step& step, Tensor x, int64_t rows, Saved& saved) const {
  Tensor plain = activate(step, x, rows, saved);
  step.release(plain);
}

Tensor MlpLayer::activate(Step& step, Tensor x, int64_t rows, Saved& saved) const {
  if (!saved.hidden.defined()) {
    saved.hidden = step.activation("mlp hidden", {rows, up_.out_features()});
    up_.forward(step, saved.hidden, x);
  }
  if (saved.act.defined()) return {};
  const Shape shape{rows, intermediate_};
  if (!step.fp8 || kind_ != FeedForward::swiglu || !step.fp8->knows_steps(step, down_.input_slot())) {
    saved.act = step.activation("mlp activation", shape);
    feed_forward_activation(step.compute, kind_, saved.act, saved.hidden);
    return {};
  }
  const RoundedOutput out =
      step.keeps() ? step.fp8->kept_input(step, down_.slot(), "mlp activation", shape)
                   : step.fp8->output(step, down_.slot(), step.fp8->input(step, "mlp activation", shape));
  swiglu_forward_fp8(step.compute, out, saved.hidden);
  saved.act = step.keeps() ? out.transposed : out.codes;
  return step.keeps() ? out.codes : Tensor();
}

void MlpLayer::backward(Step& step, Tensor dx, Tensor dy, Tensor x, Saved& saved) const {
  Tensor dact = step.temporary("d mlp activation", {saved.hidden.shape[0], intermediate_});
  down_.backward(step, dact, dy, saved.act);
  step.release(saved.act);
  const GradBuffer bias = has_gate(kind_) ? GradBuffer() : up_.bias_sums(step);
  Tensor dhidden = hidden_gradient(step, dact, saved.hidden, bias);
  step.release(dact);
  if (is_fp8(dhidden.dtype)) step.release(saved.hidden);
  up_.backward(step, dx, dhidden, x, {}, /*bias_summed=*/bias.tensor.defined());
  step.release(dhidden);
  saved.hidden = Tensor();
}

Tensor MlpLayer::hidden_gradient(Step& step, Tensor dact, Tensor hidden, const GradBuffer& bias) const {
  if (kind_ == FeedForward::swiglu && up_.takes_codes(step)) {
    const RoundedOutput out = step.fp8->gradient(step, up_.slot(), hidden.shape);
    swiglu_backward_fp8(step.compute, out, dact, hidden);
    return out.codes;
  }
  feed_forward_activation_backward(step.compute, kind_, hidden, dact, hidden, bias);
  return hidden;
}

}  // namespace ltrain
