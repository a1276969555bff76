// Sophia (arXiv:2305.14342): a step is the moment over the diagonal of the Hessian, each element of it cut to
// one. The diagonal is an average of estimates, made once in a while: by Hutchinson, u * H u with u of random
// signs, where H u is the difference of two gradients, at the weights and at weights that lie by radius * u
// beside them; or by Gauss-Newton-Bartlett, squares of the gradient with labels that the model drew itself.
#pragma once
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// The sign of an element in an estimate, from its index in the whole tensor: 128 in a call of the generator.
inline constexpr int64_t kSignsOfCall = 128;
LT_HD inline bool sign_bit(const Philox4& r, int64_t index) {
  return (r.v[(index >> 5) & 3] >> (index & 31)) & 1;
}

/// An average that moves by (1 - beta) of `factor` times what an element gives; on every device.
template <class A>
struct EstimateFactors {
  A beta, by;
  EstimateFactors(double beta, double factor) : beta(A(beta)), by(A((1.0 - beta) * factor)) {}
  LT_HD void add(A& h, A x) const { h = beta * h + by * x; }
  /// The square of g, where it is finite.
  LT_HD void add_square(A& h, A g) const {
    const A square = g * g, to = beta * h + by * square;
    h = square - square == A(0) ? to : h;
  }
};

/// What is the same for every element, and the update of one; on every device.
template <class A>
struct SophiaFactors {
  A scale, beta1, one_minus1, keep, lr, gamma, eps;

  SophiaFactors(const AdamwArgs& a, double gamma, bool decay)
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

/// y += factor * u, of the elements of a named tensor that y (n), f32 or f64, has.
void add_signs(Stream& s, Tensor y, double factor, uint64_t seed, uint64_t stream,
               const BoxElements& elements);
/// hessian = beta2 * hessian + (1 - beta2) * u * (shifted - grad) / radius; shifted: the gradient of the
/// weights to which radius * u was added. All (n) f32, or all f64.
void hutchinson_estimate(Stream& s, Tensor hessian, Tensor grad, Tensor shifted, double beta2, double radius,
                         uint64_t seed, uint64_t stream, const BoxElements& elements);
/// hessian = beta2 * hessian + (1 - beta2) * factor * grad^2, but where a gradient is not finite, as those of
/// fp16 may be: there it stays. grad: of the mean loss with sampled labels, summed over ranks; factor: the
/// number of labels, over the square of what the gradient is scaled by. Both (n) f32, or both f64.
void gauss_newton_estimate(Stream& s, Tensor hessian, Tensor grad, double beta2, double factor);
/// One step on n elements. master, exp_avg, hessian, grad: (n) f32, or all f64. low: copy of master in a
/// half, or undefined. args: beta1 of the moment; eps: least of gamma * hessian.
void sophia(Stream& s, Tensor master, Tensor exp_avg, Tensor hessian, Tensor grad, Tensor low, bool decay,
            const AdamwArgs& args, double gamma);

LT_KERNEL(add_signs, DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
          BoxElements elements)
LT_KERNEL(hutchinson_estimate, DType t, void* hessian, const void* grad, const void* shifted, int64_t n,
          double beta2, double radius, uint64_t seed, uint64_t stream, BoxElements elements)
LT_KERNEL(gauss_newton_estimate, DType t, void* hessian, const void* grad, int64_t n, double beta2,
          double factor)
LT_KERNEL(sophia, DType t, void* master, void* exp_avg, const void* hessian, const void* grad, DType low_type,
          void* low, int64_t n, bool decay, AdamwArgs args, double gamma)

}  // namespace ltrain
