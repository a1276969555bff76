// 2D tensor parallelism, and 2.5D with several grids over depth: SUMMA.
#include "models/layers/linear.h"
#include "models/tensor_parallel/summa.h"

namespace ltrain {

void Linear::forward_2d(Step& step, Tensor y, Tensor x) const {
  MatmulArgs args;
  args.trans_b = true;
  args.bias = bias(step);
  summa_outer(step, y, x, weight(step), args);
}

void Linear::backward_2d(Step& step, Tensor dx, Tensor dy, Tensor x) const {
  if (dx.defined()) summa_inner(step, dx, dy, weight(step));
  bias_backward(step, dy);
  if (!step.params.trains(weight_)) return;
  const auto work = [this, dy, x](Step& s) {
    summa_weight(s, s.params.accumulate(weight_, parts_), x, dy, /*swapped=*/true);
    s.params.grad_ready(weight_);
  };
  if (step.deferred) {
    step.deferred->add(work, {dy, x});
  } else {
    work(step);
  }
}

}  // namespace ltrain
