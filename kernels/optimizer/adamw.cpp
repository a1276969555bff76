#include "kernels/optimizer/adamw.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void adamw(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, Tensor low,
           const std::vector<AdamwRun>& runs) {
  const int64_t n = master.elements();
  int64_t end = 0;
  for (const AdamwRun& run : runs) {
    LT_CHECK(run.end > end, "adamw: a run that ends at {} after one that ends at {}", run.end, end);
    end = run.end;
  }
  LT_CHECK(end == n, "adamw of {} elements in runs of {}", n, end);
  LT_CHECK(exp_avg.elements() == n && exp_avg_sq.elements() == n && grad.elements() == n &&
               grad.dtype == master.dtype && (!low.defined() || (low.elements() == n && is_half(low.dtype))),
           "adamw of {} elements with {} gradients", n, grad.elements());
  if (s.meta()) {
    OpCost cost = op_cost("adamw", OpClass::optimizer, 14.0 * n, {master, exp_avg, exp_avg_sq},
                          {master, exp_avg, exp_avg_sq, grad});
    if (low.defined()) cost.bytes += static_cast<double>(low.bytes());
    s.meta()->add(s, cost);
    place_update(s, "adamw", master, grad, exp_avg.record->place);
    if (low.defined()) place_update(s, "adamw", low, grad, exp_avg.record->place);
    return;
  }
  LT_LAUNCH(s, adamw, master.dtype, master.data, exp_avg.data, exp_avg_sq.data, grad.data, low.dtype,
            low.data, runs);
}

}  // namespace ltrain
