#include "kernels/optimizer/sophia.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void add_signs(Stream& s, Tensor y, double factor, uint64_t seed, uint64_t stream,
               const BoxElements& elements) {
  LT_CHECK(y.dtype == DType::f32 || y.dtype == DType::f64, "add_signs: expected f32 or f64, got {}",
           dtype_name(y.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("add_signs", OpClass::optimizer, 2.0 * y.elements(), {y}, {y}));
    return;
  }
  LT_LAUNCH(s, add_signs, y.dtype, y.data, factor, y.elements(), seed, stream, elements);
}

void hutchinson_estimate(Stream& s, Tensor hessian, Tensor grad, Tensor shifted, double beta2, double radius,
                         uint64_t seed, uint64_t stream, const BoxElements& elements) {
  const int64_t n = hessian.elements();
  for (const Tensor& t : {grad, shifted})
    LT_CHECK(t.elements() == n && t.dtype == hessian.dtype,
             "hutchinson_estimate: expected gradients of {} {} elements, got {} {}", n,
             dtype_name(hessian.dtype), t.elements(), dtype_name(t.dtype));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("hutchinson_estimate", OpClass::optimizer, 6.0 * n, {hessian}, {hessian, grad, shifted}));
    const Placements place = hessian.record->place;
    for (const Tensor& t : {grad, shifted}) place_update(s, "hutchinson_estimate", hessian, t, place);
    return;
  }
  LT_LAUNCH(s, hutchinson_estimate, hessian.dtype, hessian.data, grad.data, shifted.data, n, beta2, radius,
            seed, stream, elements);
}

void gauss_newton_estimate(Stream& s, Tensor hessian, Tensor grad, double beta2, double factor) {
  const int64_t n = hessian.elements();
  LT_CHECK(grad.elements() == n && grad.dtype == hessian.dtype,
           "gauss_newton_estimate: expected gradients of {} {} elements, got {} {}", n,
           dtype_name(hessian.dtype), grad.elements(), dtype_name(grad.dtype));
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("gauss_newton_estimate", OpClass::optimizer, 4.0 * n, {hessian}, {hessian, grad}));
    place_update(s, "gauss_newton_estimate", hessian, grad, hessian.record->place);
    return;
  }
  LT_LAUNCH(s, gauss_newton_estimate, hessian.dtype, hessian.data, grad.data, n, beta2, factor);
}

void sophia(Stream& s, Tensor master, Tensor exp_avg, Tensor hessian, Tensor grad, Tensor low, bool decay,
            const OptimizerStep& args, double gamma) {
  const int64_t n = master.elements();
  for (const Tensor& t : {exp_avg, hessian, grad})
    LT_CHECK(t.elements() == n && t.dtype == master.dtype, "sophia: expected {} {} elements, got {} {}", n,
             dtype_name(master.dtype), t.elements(), dtype_name(t.dtype));
  LT_CHECK(!low.defined() || (low.elements() == n && is_half(low.dtype)),
           "sophia: expected a 16-bit copy of {} elements, got {} {}", n, low.elements(),
           dtype_name(low.dtype));
  if (s.meta()) {
    OpCost cost =
        op_cost("sophia", OpClass::optimizer, 10.0 * n, {master, exp_avg}, {master, exp_avg, hessian, grad});
    if (low.defined()) cost.bytes += static_cast<double>(low.bytes());
    s.meta()->add(s, cost);
    place_update(s, "sophia", master, grad, exp_avg.record->place);
    if (low.defined()) place_update(s, "sophia", low, grad, exp_avg.record->place);
    return;
  }
  LT_LAUNCH(s, sophia, master.dtype, master.data, exp_avg.data, hessian.data, grad.data, low.dtype, low.data,
            n, decay, args, gamma);
}

}  // namespace ltrain
