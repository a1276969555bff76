#include "kernels/optimizer/momentum.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void momentum_update(Stream& s, Tensor master, Tensor moment, Tensor grad, Tensor low, bool decay,
                     const MomentumArgs& args) {
  const int64_t n = master.elements();
  LT_CHECK(moment.elements() == n && grad.elements() == n && grad.dtype == master.dtype &&
               moment.dtype == master.dtype &&
               (!low.defined() || (low.elements() == n && is_half(low.dtype))),
           "momentum: expected moments and gradients of {} {} elements and a 16-bit copy or none, got {} "
           "moments in {} and {} gradients in {}",
           n, dtype_name(master.dtype), moment.elements(), dtype_name(moment.dtype), grad.elements(),
           dtype_name(grad.dtype));
  const bool moves = args.rule != MomentumRule::muon;
  LT_CHECK(moves || !low.defined(), "momentum: expected no low-precision copy with Muon, got one");
  if (s.meta()) {
    const Tensor out = moves ? master : grad;
    OpCost cost = op_cost("momentum", OpClass::optimizer, 8.0 * n, {out, moment}, {out, moment, grad});
    if (low.defined()) cost.bytes += static_cast<double>(low.bytes());
    s.meta()->add(s, cost);
    place_update(s, "momentum", out, grad, moment.record->place);
    if (low.defined()) place_update(s, "momentum", low, grad, moment.record->place);
    return;
  }
  LT_LAUNCH(s, momentum, master.dtype, master.data, moment.data, grad.data, low.dtype, low.data, n, decay,
            args);
}

}  // namespace ltrain
