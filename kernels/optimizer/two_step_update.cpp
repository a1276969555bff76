#include "kernels/optimizer/two_step_update.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void lamb_direction(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, bool decay,
                    const OptimizerStep& args) {
  const int64_t n = master.elements();
  LT_CHECK(exp_avg.elements() == n && exp_avg_sq.elements() == n && grad.elements() == n &&
               grad.dtype == master.dtype && exp_avg.dtype == master.dtype,
           "lamb_direction: expected moments and gradients of {} {} elements, got {} gradients in {}", n,
           dtype_name(master.dtype), grad.elements(), dtype_name(grad.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("lamb_direction", OpClass::optimizer, 14.0 * n, {grad, exp_avg, exp_avg_sq},
                             {master, exp_avg, exp_avg_sq, grad}));
    place_update(s, "lamb_direction", grad, grad, exp_avg.record->place);
    return;
  }
  LT_LAUNCH(s, lamb_direction, master.dtype, master.data, exp_avg.data, exp_avg_sq.data, grad.data, n, decay,
            args);
}

void apply_direction(Stream& s, Tensor master, Tensor direction, Tensor low, Tensor sums,
                     const DirectionArgs& args) {
  const int64_t n = master.elements();
  LT_CHECK(direction.elements() == n && direction.dtype == master.dtype &&
               (!low.defined() || (low.elements() == n && is_half(low.dtype))) &&
               sums.defined() == (args.scale != DirectionScale::none) &&
               (!sums.defined() || (sums.elements() == 2 && sums.dtype == DType::f64)),
           "apply_direction: expected a direction of {} {} elements, two f64 sums exactly if it is scaled, "
           "and a 16-bit copy or none; got a direction of {} {}, sums {}",
           n, dtype_name(master.dtype), direction.elements(), dtype_name(direction.dtype), sums.defined());
  if (s.meta()) {
    OpCost cost = op_cost("apply_direction", OpClass::optimizer, 3.0 * n, {master}, {master, direction});
    if (low.defined()) cost.bytes += static_cast<double>(low.bytes());
    s.meta()->add(s, cost);
    if (sums.defined())
      for (int i = 0; i < kAxisCount; ++i)
        if (const Axis a = static_cast<Axis>(i); a != Axis::pipeline)
          place_require(s, "apply_direction", sums, a, Placement::R());
    // The direction's placement was compared with the shard's when it was made.
    place_update(s, "apply_direction", master, direction, direction.record->place);
    if (low.defined()) place_update(s, "apply_direction", low, direction, direction.record->place);
    return;
  }
  LT_LAUNCH(s, apply_direction, master.dtype, master.data, direction.data, low.dtype, low.data,
            static_cast<const double*>(sums.data), n, args);
}

}  // namespace ltrain
