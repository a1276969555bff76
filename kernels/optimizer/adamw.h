// AdamW (arXiv:1711.05101) and Adam, fused: gradient scaling, moments, decay, update, and the low-precision
// copy in one pass.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/optimizer/adamw_args.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// What is the same for every element of an update, on every device.
template <class A>
struct AdamwFactors {
  A beta1, one_minus1, beta2, one_minus2;
  A keep;  ///< of a parameter, after its decay
  A step;  ///< learning rate over the bias correction of the first moment
  A root;  ///< 1 / sqrt of the bias correction of the second
  A eps, scale;
  A couple;  ///< of a parameter, added to its gradient

  AdamwFactors() = default;
  AdamwFactors(const AdamwArgs& args, bool decay)
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
};

/// Elements up to `end` from where the run before it ends: a parameter, or several that are updated alike.
struct AdamwRun {
  int64_t end = 0;
  bool decay = true;  ///< false leaves the weight decay out (norms, biases)
  AdamwArgs args;
};

/// master -= lr * (weight_decay * master + mhat / (sqrt(vhat) + eps)) over n elements, PyTorch's order of
/// operations. master, exp_avg, exp_avg_sq, grad: (n) f32 (all f64 for f64); beside an f32 master both
/// moments may be bf16, and the gradients too: read as f32, and moments rounded to nearest as they are
/// stored. low: (n) copy of master in a half, or undefined. `runs`: not empty, the last one ends at n.
void adamw(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, Tensor low,
           const std::vector<AdamwRun>& runs);

/// One of several places whose elements are updated at once, as adamw has them.
struct AdamwPart {
  Tensor master, exp_avg, exp_avg_sq, grad, low;
  std::vector<AdamwRun> runs;
};
/// All parts, which are of the same types: on a GPU in one launch, or in a few where there are hundreds of
/// runs. The bits do not depend on what else is updated.
void adamw(Stream& s, const std::vector<AdamwPart>& parts);

/// A part without its types.
struct AdamwSpan {
  void *master, *exp_avg, *exp_avg_sq;
  const void* grad;
  void* low;  ///< null: none
  std::vector<AdamwRun> runs;
};
struct AdamwTypes {
  DType master, low, moment, grad;
};
/// Calls f<T>() with the type of moments or gradients beside a master of A.
template <class A, class F>
void dispatch_beside(DType t, F&& f) {
  if constexpr (sizeof(A) == 4)
    if (t == DType::bf16) return f.template operator()<bf16>();
  f.template operator()<A>();
}
LT_KERNEL(adamw, AdamwTypes types, std::vector<AdamwSpan> spans)

}  // namespace ltrain
