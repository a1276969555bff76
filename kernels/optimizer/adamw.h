// AdamW (arXiv:1711.05101) and Adam, fused: gradient scaling, moments, decay, update and low-precision copy
// in one pass.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/optimizer/optimizer_step.h"
#include "kernels/tensor/fused.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Factors of an update, equal for all elements, and its arithmetic, the same bits on every device
/// (docs/numerics.md).
template <class A>
struct AdamwFactors {
  A beta1, one_minus1, beta2, one_minus2;
  A keep;  ///< factor of a parameter for its decay
  A step;  ///< learning rate / bias correction of the first moment
  A root;  ///< 1 / sqrt of the bias correction of the second moment
  A eps, scale;
  A couple;  ///< factor of a parameter added to its gradient

  AdamwFactors() = default;
  AdamwFactors(const OptimizerStep& args, bool decay)
      : beta1(A(args.beta1)),
        one_minus1(A(1.0 - args.beta1)),
        beta2(A(args.beta2)),
        one_minus2(A(1.0 - args.beta2)),
        keep(decay && !args.coupled ? A(1.0 - args.lr * args.weight_decay) : A(1)),
        step(A(args.lr / (1.0 - std::pow(args.beta1, static_cast<double>(args.step))))),
        root(A(1.0 / std::sqrt(1.0 - std::pow(args.beta2, static_cast<double>(args.step))))),
        eps(A(args.eps)),
        scale(A(args.grad_scale)),
        couple(decay && args.coupled ? A(args.weight_decay) : A(0)) {}

  LT_HD A gradient(A grad, A w) const { return fused(couple, w, grad * scale); }
  LT_HD A first(A m, A grad) const { return fused(beta1, m, one_minus1 * grad); }
  LT_HD A second(A v, A grad) const { return fused(beta2, v, one_minus2 * grad * grad); }
  /// `deviation`: square root of the second moment.
  LT_HD A weight(A w, A m, A deviation) const {
    return fused(w, keep, -(step * m / fused(deviation, root, eps)));
  }
};

/// Elements from the end of the previous run up to `end`: one parameter, or several with the same settings.
struct AdamwRun {
  int64_t end = 0;
  bool decay = true;  ///< false skips the weight decay (norms, biases)
  OptimizerStep args;
};

/// master -= lr * (weight_decay * master + mhat / (sqrt(vhat) + eps)) over n elements, in PyTorch's order of
/// operations. master, exp_avg, exp_avg_sq, grad: (n) f32 (all f64 for f64). With an f32 master both moments,
/// and the gradients, may be bf16: read as f32, and moments rounded to nearest when stored. low: (n) 16-bit
/// copy of master, or undefined. `runs`: not empty, the last one ends at n.
void adamw(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, Tensor low,
           const std::vector<AdamwRun>& runs);

/// One of several ranges that are updated at once, with the arguments of adamw.
struct AdamwPart {
  Tensor master, exp_avg, exp_avg_sq, grad, low;
  std::vector<AdamwRun> runs;
};
/// Updates all parts, which have the same dtypes: on a GPU in one launch, or in a few for hundreds of runs.
/// The bits of a part do not depend on the other parts.
void adamw(Stream& s, const std::vector<AdamwPart>& parts);

/// A part without its dtypes.
struct AdamwSpan {
  void *master, *exp_avg, *exp_avg_sq;
  const void* grad;
  void* low;  ///< may be null
  std::vector<AdamwRun> runs;
};
struct AdamwTypes {
  DType master, low, moment, grad;
};
/// Calls f<T>() with the type of moments or gradients of a master of type A.
template <class A, class F>
void dispatch_beside(DType t, F&& f) {
  if constexpr (sizeof(A) == 4)
    if (t == DType::bf16) return f.template operator()<bf16>();
  f.template operator()<A>();
}
LT_KERNEL(adamw, AdamwTypes types, std::vector<AdamwSpan> spans)

}  // namespace ltrain
