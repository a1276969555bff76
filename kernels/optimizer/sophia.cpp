#include "kernels/optimizer/sophia.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void add_signs(Stream& s, Tensor y, double factor, uint64_t seed, uint64_t stream,
               const BoxElements& elements) {
  LT_CHECK(y.dtype == DType::f32 || y.dtype == DType::f64, "signs added to {}", dtype_name(y.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("add_signs", OpClass::optimizer, 2.0 * y.elements(), {y}, {y}));
    return;
  }
  LT_LAUNCH(s, add_signs, y.dtype, y.data, factor, y.elements(), seed, stream, elements);
}

void sophia(Stream& s, Tensor master, Tensor exp_avg, Tensor hessian, Tensor grad, Tensor shifted, bool decay,
            const SophiaArgs& args, uint64_t seed, uint64_t stream, const BoxElements& elements) {
  const int64_t n = master.elements();
  const auto alike = [&](const Tensor& t) { return t.elements() == n && t.dtype == master.dtype; };
  LT_CHECK(alike(exp_avg) && alike(hessian) && alike(grad) && (!shifted.defined() || alike(shifted)),
           "Sophia of {} elements with {} gradients", n, grad.elements());
  if (s.meta()) {
    OpCost cost = op_cost("sophia", OpClass::optimizer, 12.0 * n, {master, exp_avg, hessian},
                          {master, exp_avg, hessian, grad});
    if (shifted.defined()) cost.bytes += static_cast<double>(shifted.bytes());
    s.meta()->add(s, cost);
    if (shifted.defined()) place_update(s, "sophia", hessian, shifted, exp_avg.record->place);
    place_update(s, "sophia", master, grad, exp_avg.record->place);
    return;
  }
  LT_LAUNCH(s, sophia, master.dtype, master.data, exp_avg.data, hessian.data, grad.data, shifted.data, n,
            decay, args, seed, stream, elements);
}

}  // namespace ltrain
