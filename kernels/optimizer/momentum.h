// Fused updates with one moment: SGD with momentum, Lion, and the direction that Muon orthogonalizes.
#pragma once
#include "kernels/tensor/fused.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

enum class MomentumRule : uint8_t {
  sgd,   ///< m = momentum m + g, with g + weight_decay w for g; w -= lr m (PyTorch's torch.optim.SGD)
  lion,  ///< w = (1 - lr weight_decay) w - lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g
         ///< (arXiv:2302.06675)
  muon,  ///< m = momentum m + (1 - momentum) g; writes the direction to g, w is unchanged
};

struct MomentumArgs {
  MomentumRule rule = MomentumRule::sgd;
  double lr = 0, weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.99;  ///< lion
  double momentum = 0.9;             ///< sgd, muon
  bool nesterov = false;             ///< sgd, muon: Nesterov momentum
  double grad_scale = 1;
};

/// Factors of an update, equal for all elements, and the update of one element, the same bits on every
/// device.
template <class A>
struct MomentumFactors {
  A scale, lr, decay, keep, beta1, one_minus1, beta2, one_minus2, ahead;

  MomentumFactors(const MomentumArgs& a, bool decays)
      : scale(A(a.grad_scale)),
        lr(A(a.lr)),
        decay(decays && a.rule == MomentumRule::sgd ? A(a.weight_decay) : A(0)),
        keep(decays && a.rule == MomentumRule::lion ? A(1.0 - a.lr * a.weight_decay) : A(1)),
        beta1(A(a.rule == MomentumRule::lion ? a.beta1 : a.momentum)),
        one_minus1(A(
            a.rule == MomentumRule::sgd ? 1.0 : 1.0 - (a.rule == MomentumRule::lion ? a.beta1 : a.momentum))),
        beta2(A(a.beta2)),
        one_minus2(A(1.0 - a.beta2)),
        ahead(a.nesterov ? A(1) : A(0)) {}

  template <MomentumRule rule>
  LT_HD void step(A& w, A& m, A& g) const {
    const A grad = fused(decay, w, g * scale);
    if constexpr (rule == MomentumRule::lion) {
      const A c = fused(beta1, m, one_minus1 * grad);
      w = fused(w, keep, c > A(0) ? -lr : c < A(0) ? lr : A(0));
      m = fused(beta2, m, one_minus2 * grad);
    } else {
      m = fused(beta1, m, one_minus1 * grad);
      const A direction = ahead != A(0) ? fused(beta1, m, one_minus1 * grad) : m;
      if constexpr (rule == MomentumRule::sgd)
        w = fused(-lr, direction, w);
      else
        g = direction;
    }
  }
};

/// One step on n elements. master, moment, grad: f32 (all f64 for f64). low: 16-bit copy of master, or
/// undefined. `decay` false skips the weight decay.
void momentum_update(Stream& s, Tensor master, Tensor moment, Tensor grad, Tensor low, bool decay,
                     const MomentumArgs& args);

LT_KERNEL(momentum, DType t, void* master, void* moment, void* grad, DType low_type, void* low, int64_t n,
          bool decay, MomentumArgs args)

}  // namespace ltrain
