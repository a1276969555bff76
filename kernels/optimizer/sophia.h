// Sophia (arXiv:2305.14342): a step is the moment divided by the diagonal of the Hessian, clipped to 1
// elementwise. The diagonal is an average of estimates, made every few steps. Hutchinson: u * H u with u of
// random signs; H u is the difference of two gradients, at the weights and at weights shifted by radius * u.
// Gauss-Newton-Bartlett: squares of the gradient for labels sampled from the model.
#pragma once
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Sign of an element in an estimate, from its index in the full tensor: 128 signs from one Philox call.
inline constexpr int64_t kSignsOfCall = 128;
LT_HD inline bool sign_bit(const Philox4& r, int64_t index) {
  return (r.v[(index >> 5) & 3] >> (index & 31)) & 1;
}

/// An average that moves by (1 - beta) towards `factor` times a value; on every device.
template <class A>
struct EstimateFactors {
  A beta, by;
  EstimateFactors(double beta, double factor) : beta(A(beta)), by(A((1.0 - beta) * factor)) {}
  LT_HD void add(A& h, A x) const { h = beta * h + by * x; }
  /// Adds the square of g if it is finite.
  LT_HD void add_square(A& h, A g) const {
    const A square = g * g, to = beta * h + by * square;
    h = square - square == A(0) ? to : h;
  }
};

/// Factors of an update, equal for all elements, and the update of one element; on every device.
template <class A>
struct SophiaFactors {
  A scale, beta1, one_minus1, keep, lr, gamma, eps;

  SophiaFactors(const OptimizerStep& a, double gamma, bool decay)
      : scale(A(a.grad_scale)),
        beta1(A(a.beta1)),
        one_minus1(A(1.0 - a.beta1)),
        keep(decay ? A(1.0 - a.lr * a.weight_decay) : A(1)),
        lr(A(a.lr)),
        gamma(A(gamma)),
        eps(A(a.eps)) {}

  LT_HD void step(A& w, A& m, A h, A g) const {
    m = beta1 * m + one_minus1 * g * scale;
    const A below = gamma * h > eps ? gamma * h : eps, ratio = m / below;
    w = w * keep - lr * (ratio > A(1) ? A(1) : ratio < A(-1) ? A(-1) : ratio);
  }
};

/// y += factor * u. y: (n) f32 or f64, elements of a named tensor.
void add_signs(Stream& s, Tensor y, double factor, uint64_t seed, uint64_t stream,
               const BoxElements& elements);
/// hessian = beta2 * hessian + (1 - beta2) * u * (shifted - grad) / radius; shifted: gradient at weights +
/// radius * u. All (n) f32, or all f64.
void hutchinson_estimate(Stream& s, Tensor hessian, Tensor grad, Tensor shifted, double beta2, double radius,
                         uint64_t seed, uint64_t stream, const BoxElements& elements);
/// hessian = beta2 * hessian + (1 - beta2) * factor * grad^2; unchanged where a gradient is not finite, as
/// can happen with fp16. grad: gradient of the mean loss with sampled labels, summed over ranks; factor:
/// number of labels / (scale of the gradient)^2. Both (n) f32, or both f64.
void gauss_newton_estimate(Stream& s, Tensor hessian, Tensor grad, double beta2, double factor);
/// One step on n elements. master, exp_avg, hessian, grad: (n) f32, or all f64. low: 16-bit copy of master,
/// or undefined. args: beta1 of the moment; eps: lower limit of gamma * hessian.
void sophia(Stream& s, Tensor master, Tensor exp_avg, Tensor hessian, Tensor grad, Tensor low, bool decay,
            const OptimizerStep& args, double gamma);

LT_KERNEL(add_signs, DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
          BoxElements elements)
LT_KERNEL(hutchinson_estimate, DType t, void* hessian, const void* grad, const void* shifted, int64_t n,
          double beta2, double radius, uint64_t seed, uint64_t stream, BoxElements elements)
LT_KERNEL(gauss_newton_estimate, DType t, void* hessian, const void* grad, int64_t n, double beta2,
          double factor)
LT_KERNEL(sophia, DType t, void* master, void* exp_avg, const void* hessian, const void* grad, DType low_type,
          void* low, int64_t n, bool decay, OptimizerStep args, double gamma)

}  // namespace ltrain
