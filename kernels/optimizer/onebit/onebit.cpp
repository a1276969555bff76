#include "kernels/optimizer/onebit/onebit.h"

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
           "1-bit Adam: expected moments and mean of {} {} elements and a 16-bit copy or none, got a mean of "
           "{} {}",
           n, dtype_name(master.dtype), mean.elements(), dtype_name(mean.dtype));
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
           "1-bit LAMB: expected moments and mean of {} {} elements, got a mean of {} {}", n,
           dtype_name(master.dtype), mean.elements(), dtype_name(mean.dtype));
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
           "1-bit LAMB: expected second moments of {} elements and one f64 ratio, got {} and {} {}",
           fresh.elements(), exp_avg_sq.elements(), most.elements(), dtype_name(most.dtype));
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
           "1-bit LAMB: expected f64 state and sums of 2 numbers for each tensor, got {} and {}",
           state.elements(), sums.elements());
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
