// Updates of Adam and LAMB after warm-up, with a frozen second moment: 1-bit Adam (arXiv:2102.02888) and
// 1-bit LAMB (arXiv:2104.06069). Their first moment, `mean`, is the average over ranks, the result of a
// compressed all-reduce (error_feedback.h). An element without a second moment does not move.
#pragma once
#include <cmath>

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/lamb_limits.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct OnebitArgs {
  OptimizerStep adam;
  int64_t freeze_step = 1;  ///< last step that changed the second moment
};

/// Factors of an update, equal for all elements. Bias corrections continue from warm-up.
template <class A>
struct OnebitFactors : AdamwFactors<A> {
  A fresh;  ///< 1 / sqrt of the bias correction of `fresh`, a second moment that still moves

  OnebitFactors(const OnebitArgs& a, bool decay)
      : AdamwFactors<A>(a.adam, decay), fresh(AdamwFactors<A>(a.adam, decay).root) {
    this->root = A(1.0 / std::sqrt(1.0 - std::pow(a.adam.beta2, static_cast<double>(a.freeze_step))));
  }
  LT_HD A denominator(A v) const { return A(std::sqrt(v)) * this->root + this->eps; }
  /// Ratio of the frozen second moment's denominator to that of `v_fresh`, for LAMB.
  LT_HD A ratio(A v, A v_fresh) const { return denominator(v) / (A(std::sqrt(v_fresh)) * fresh + this->eps); }
};

/// exp_avg = mean; master -= lr * (weight_decay * master + mhat / (sqrt(vhat) + eps)). master, exp_avg,
/// exp_avg_sq, mean: (n) f32 (all f64 for f64). low: 16-bit copy of master, or undefined.
void onebit_adam(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor mean, Tensor low,
                 bool decay, const OnebitArgs& args);

/// Moves `fresh` like a second moment, by the gradient that took exp_avg to mean; then exp_avg = mean, and
/// mean = the direction, with its decay.
void onebit_lamb_direction(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor fresh,
                           Tensor mean, bool decay, const OnebitArgs& args);
/// most (1) f64 = maximum of itself and the ratios of all elements.
void onebit_ratio(Stream& s, Tensor most, Tensor exp_avg_sq, Tensor fresh, const OnebitArgs& args);

/// Trust coefficients of T tensors. state: (T, 2) f64, average and last factor; sums: (T, 2) f64. Warm-up:
/// sums has the squares of parameter and direction, whose ratio moves the average. Frozen: the first column
/// of sums has the ratio, from which the coefficient of the step follows. On return the first column of sums
/// is the factor of the direction.
void onebit_coefficients(Stream& s, Tensor state, Tensor sums, bool frozen, const LambLimits& limits);

LT_KERNEL(onebit_adam, DType t, void* master, void* exp_avg, const void* exp_avg_sq, const void* mean,
          DType low_type, void* low, int64_t n, bool decay, OnebitArgs args)
LT_KERNEL(onebit_lamb_direction, DType t, const void* master, void* exp_avg, const void* exp_avg_sq,
          void* fresh, void* mean, int64_t n, bool decay, OnebitArgs args)
LT_KERNEL(onebit_ratio, DType t, double* most, const void* exp_avg_sq, const void* fresh, int64_t n,
          OnebitArgs args)
LT_KERNEL(onebit_coefficients, double* state, double* sums, int64_t tensors, bool frozen, LambLimits limits)

/// onebit_coefficients for one tensor.
LT_HD inline void move_coefficient(double* state, double* sums, bool frozen, const LambLimits& l) {
  if (frozen) {
    const double last = state[1];
    const double factor =
        LambLimits::within(LambLimits::within(sums[0], l.factor_min, l.factor_max),
                           last * (1 - l.factor_threshold), last * (1 + l.factor_threshold));
    state[1] = factor;
    sums[0] = state[0] * factor;
    return;
  }
  const bool both = sums[0] > 0 && sums[1] > 0;
  const double trust = l.trust(sums[0], sums[1]);
  if (both) state[0] = l.coeff_beta * state[0] + (1 - l.coeff_beta) * trust;
  state[1] = 1;
  sums[0] = trust;
}

}  // namespace ltrain
