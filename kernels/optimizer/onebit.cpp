#include "kernels/optimizer/onebit.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

bool alike(const Tensor& a, const Tensor& b) { return a.elements() == b.elements() && a.dtype == b.dtype; }

}  // namespace

void onebit_adam(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor mean, Tensor low,
                 bool decay, const OnebitArgs& args) {
  const int64_t n = master.elements();
  LT_CHECK(alike(exp_avg, master) && alike(exp_avg_sq, master) && alike(mean, master) &&
               (!low.defined() || (low.elements() == n && is_half(low.dtype))),
           "1-bit Adam of {} elements with a mean of {}", n, mean.elements());
  if (s.meta()) {
    OpCost cost =
        op_cost("onebit_adam", OpClass::optimizer, 8.0 * n, {master, exp_avg}, {master, exp_avg_sq, mean});
    if (low.defined()) cost.bytes += static_cast<double>(low.bytes());
    s.meta()->add(s, cost);
    place_update(s, "onebit_adam", master, mean, exp_avg.record->place);
    if (low.defined()) place_update(s, "onebit_adam", low, mean, exp_avg.record->place);
    return;
  }
  LT_LAUNCH(s, onebit_adam, master.dtype, master.data, exp_avg.data, exp_avg_sq.data, mean.data, low.dtype,
            low.data, n, decay, args);
}

void onebit_lamb_direction(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor fresh,
                           Tensor mean, bool decay, const OnebitArgs& args) {
  const int64_t n = master.elements();
  LT_CHECK(alike(exp_avg, master) && alike(exp_avg_sq, master) && alike(fresh, master) && alike(mean, master),
           "direction of {} elements with a mean of {}", n, mean.elements());
  if (s.meta()) {
    s.meta()->add(s, op_cost("onebit_lamb_direction", OpClass::optimizer, 16.0 * n, {exp_avg, fresh, mean},
                             {master, exp_avg, exp_avg_sq, fresh, mean}));
    place_update(s, "onebit_lamb_direction", mean, mean, exp_avg.record->place);
    return;
  }
  LT_LAUNCH(s, onebit_lamb_direction, master.dtype, master.data, exp_avg.data, exp_avg_sq.data, fresh.data,
            mean.data, n, decay, args);
}

void onebit_ratio(Stream& s, Tensor most, Tensor exp_avg_sq, Tensor fresh, const OnebitArgs& args) {
  LT_CHECK(alike(exp_avg_sq, fresh) && most.elements() == 1 && most.dtype == DType::f64,
           "ratio of {} and {} elements", exp_avg_sq.elements(), fresh.elements());
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("onebit_ratio", OpClass::optimizer, 6.0 * fresh.elements(), {}, {exp_avg_sq, fresh}));
    return;
  }
  LT_LAUNCH(s, onebit_ratio, fresh.dtype, most.ptr<double>(), exp_avg_sq.data, fresh.data, fresh.elements(),
            args);
}

void onebit_coefficients(Stream& s, Tensor state, Tensor sums, bool frozen, const LambLimits& limits) {
  LT_CHECK(alike(state, sums) && state.dtype == DType::f64 && state.elements() % 2 == 0,
           "coefficients of {} tensors", sums.elements() / 2);
  if (s.meta()) {
    s.meta()->add(s, op_cost("onebit_coefficients", OpClass::optimizer, 4.0 * sums.elements(), {state, sums},
                             {state, sums}));
    place_update(s, "onebit_coefficients", state, sums, state.record->place);
    return;
  }
  LT_LAUNCH(s, onebit_coefficients, state.ptr<double>(), sums.ptr<double>(), state.elements() / 2, frozen,
            limits);
}

}  // namespace ltrain
