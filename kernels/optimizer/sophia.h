// Sophia-H (arXiv:2305.14342): a step is the moment over the diagonal of the Hessian, each element of it cut
// to one, and the diagonal is estimated once in a while as u * H u with u of random signs (Hutchinson). H u
// is the difference of two gradients, at the weights and at weights that lie by radius * u beside them.
#pragma once
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct SophiaArgs {
  AdamwArgs adam;       ///< beta1 of the moment, beta2 of the diagonal; eps: least of gamma * diagonal
  double gamma = 0.01;  ///< of the diagonal that the moment is divided by
  double radius = 1e-4;
};

/// The sign of an element in an estimate, from its index in the whole tensor: 128 in a call of the generator.
inline constexpr int64_t kSignsOfCall = 128;
LT_HD inline bool sign_bit(const Philox4& r, int64_t index) {
  return (r.v[(index >> 5) & 3] >> (index & 31)) & 1;
}

/// What is the same for every element, and the update of one; on every device. `estimate` is zero where
/// there is none.
template <class A>
struct SophiaFactors {
  A scale, beta1, one_minus1, beta2, one_minus2, keep, lr, gamma, eps, over;

  SophiaFactors(const SophiaArgs& a, bool decay, bool estimated)
      : scale(A(a.adam.grad_scale)),
        beta1(A(a.adam.beta1)),
        one_minus1(A(1.0 - a.adam.beta1)),
        beta2(estimated ? A(a.adam.beta2) : A(1)),
        one_minus2(estimated ? A(1.0 - a.adam.beta2) : A(0)),
        keep(decay ? A(1.0 - a.adam.lr * a.adam.weight_decay) : A(1)),
        lr(A(a.adam.lr)),
        gamma(A(a.gamma)),
        eps(A(a.adam.eps)),
        over(A(1.0 / a.radius)) {}

  LT_HD void step(A& w, A& m, A& h, A g, A estimate) const {
    m = beta1 * m + one_minus1 * g * scale;
    h = beta2 * h + one_minus2 * estimate;
    const A below = gamma * h > eps ? gamma * h : eps, ratio = m / below;
    w = w * keep - lr * (ratio > A(1) ? A(1) : ratio < A(-1) ? A(-1) : ratio);
  }
};

/// y += factor * u, of the elements of a named tensor that y (n), f32 or f64, has.
void add_signs(Stream& s, Tensor y, double factor, uint64_t seed, uint64_t stream,
               const BoxElements& elements);
/// One step on n elements. master, exp_avg, hessian, grad: (n) f32, or all f64. shifted: the gradient of the
/// weights to which radius * u was added, or undefined where nothing is estimated.
void sophia(Stream& s, Tensor master, Tensor exp_avg, Tensor hessian, Tensor grad, Tensor shifted, bool decay,
            const SophiaArgs& args, uint64_t seed, uint64_t stream, const BoxElements& elements);

LT_KERNEL(add_signs, DType t, void* y, double factor, int64_t n, uint64_t seed, uint64_t stream,
          BoxElements elements)
LT_KERNEL(sophia, DType t, void* master, void* exp_avg, void* hessian, const void* grad, const void* shifted,
          int64_t n, bool decay, SophiaArgs args, uint64_t seed, uint64_t stream, BoxElements elements)

}  // namespace ltrain
