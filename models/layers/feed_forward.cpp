#include "models/layers/feed_forward.h"

#include "kernels/elementwise/activation.h"

namespace ltrain {

void feed_forward_activation(Stream& s, FeedForward kind, Tensor y, Tensor hidden) {
  switch (kind) {
    case FeedForward::swiglu:
      return swiglu_forward(s, y, hidden);
    case FeedForward::geglu:
      return geglu_forward(s, y, hidden);
    case FeedForward::geglu_erf:
      return geglu_forward(s, y, hidden, GeluForm::erf);
    case FeedForward::clamped_swiglu:
      return clamped_swiglu_forward(s, y, hidden);
    case FeedForward::gelu:
      return gelu_forward(s, y, hidden);
    case FeedForward::gelu_erf:
      return gelu_forward(s, y, hidden, GeluForm::erf);
  }
}

void feed_forward_activation_backward(Stream& s, FeedForward kind, Tensor dhidden, Tensor dy, Tensor hidden,
                                      const GradBuffer& bias) {
  if (bias.tensor.defined()) {
    LT_CHECK(!has_gate(kind), "expected a bias gradient of an activation without a gate");
    const GeluForm form = kind == FeedForward::gelu_erf ? GeluForm::erf : GeluForm::tanh;
    return gelu_backward_sums(s, dhidden, bias.tensor, dy, hidden, form, bias.accumulate);
  }
  switch (kind) {
    case FeedForward::swiglu:
      return swiglu_backward(s, dhidden, dy, hidden);
    case FeedForward::geglu:
      return geglu_backward(s, dhidden, dy, hidden);
    case FeedForward::geglu_erf:
      return geglu_backward(s, dhidden, dy, hidden, GeluForm::erf);
    case FeedForward::clamped_swiglu:
      return clamped_swiglu_backward(s, dhidden, dy, hidden);
    case FeedForward::gelu:
      return gelu_backward(s, dhidden, dy, hidden);
    case FeedForward::gelu_erf:
      return gelu_backward(s, dhidden, dy, hidden, GeluForm::erf);
  }
}

}  // namespace ltrain
