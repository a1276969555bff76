#include "parallel/optim/onebit.h"

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

OnebitUpdate::OnebitUpdate(UpdateContext& c)
    : c_(c), own_squares_(allocate_whole(c, "squares of own gradients", DType::f64, 1)) {}

void OnebitUpdate::add_own_squares(const Tensor& grad, int ranks, const Tensor& total) {
  Stream& s = c_.compute();
  const Tensor own = place_apart(s, grad);
  if (s.meta())
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i);
          own.record->place[a] == Placement::P() || own.record->place[a] == Placement::R())
        if (a != Axis::pipeline) place_set(s, own, a, Placement::S(0));
  fill_zero(s, own_squares_);
  if (s.meta()) place_zero(own_squares_);
  sum_squares(s, own_squares_, own);
  scale_add(s, total, 1, own_squares_, ranks);
}

void OnebitUpdate::average(UpdateRule rule, const std::function<void(const Elements&)>& before) {
  Stream& s = c_.compute();
  const OptimizerStep& step = c_.step();
  for (int b : c_.buckets(rule)) {
    const Group& g = c_.group(b);
    const Elements e = c_.stored(b);
    // The first moment as if this rank's gradient were the average: the mean of these moments is the new
    // moment.
    if (s.meta())
      for (int i = 0; i < kAxisCount; ++i)
        if (const Axis a = static_cast<Axis>(i); g.axes().has(a) && e.grad.record->place[a] == Placement::P())
          place_as(s, "moment of one rank", a, e.grad, Placement::P(), Placement::S(0));
    scale_add(s, e.grad, (1 - step.beta1) * step.grad_scale * g.size(), e.states[0], step.beta1);
    if (before) before(e);
    if (g.size() > 1) c_.average_moments(b, e.grad, 1.0 / g.size(), e.states[1]);
  }
}

}  // namespace ltrain
