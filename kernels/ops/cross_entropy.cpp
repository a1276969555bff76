#include "kernels/ops/cross_entropy.h"

#include "kernels/core/placement_rules.h"

namespace ltrain {

void cross_entropy(Stream& s, Tensor loss, Tensor dlogits, Tensor logits, Tensor targets, double scale) {
  LT_CHECK(targets.elements() == logits.rows() && loss.elements() == 1 && loss.dtype == DType::f64 &&
               (!dlogits.defined() || dlogits.shape == logits.shape),
           "cross entropy of {} with {} targets", to_string(logits.shape), targets.elements());
  if (s.meta()) {
    OpCost cost = op_cost("cross_entropy", OpClass::cross_entropy, 8.0 * logits.elements(), {}, {logits});
    if (dlogits.defined()) cost.bytes += static_cast<double>(dlogits.bytes());
    s.meta()->add(s, cost);
    place(s, "cross_entropy", Rule::sum_rows, {loss}, {logits, targets}, /*accumulate=*/true);
    if (dlogits.defined()) place(s, "cross_entropy", Rule::elementwise, {dlogits}, {logits, targets});
    return;
  }
  s.launch([=] {
    LT_CPU(cross_entropy_cpu)
    (logits.dtype, dlogits.defined() ? dlogits.dtype : logits.dtype, loss.ptr<double>(), dlogits.data,
     logits.data, targets.ptr<int32_t>(), logits.rows(), logits.cols(), scale);
  });
}

}  // namespace ltrain
