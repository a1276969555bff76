// Updates in two halves, for optimizers that scale a whole tensor by numbers of it: first a direction takes
// the place of the gradient, then, when the numbers of the tensor are summed over all who have parts of it,
// the parameter moves along it.
#pragma once
#include <cmath>

#include "kernels/optimizer/adamw.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// The direction of LAMB (arXiv:1904.00962): moments as in AdamW, then grad = mhat / (sqrt(vhat) + eps) +
/// weight_decay master. master is read. All (n) f32, or all f64.
void lamb_direction(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, bool decay,
                    const AdamwArgs& args);

LT_KERNEL(lamb_direction, DType t, const void* master, void* exp_avg, void* exp_avg_sq, void* grad, int64_t n,
          bool decay, AdamwArgs args)

enum class DirectionScale : uint8_t {
  none,   ///< lr
  trust,  ///< LAMB: lr |w| / |u|; lr where one of them is zero
  given,  ///< 1-bit LAMB: lr sums[0]
  rms,    ///< Adafactor: lr max(eps, rms(w)) / max(1, rms(u) / threshold)
};

struct DirectionArgs {
  DirectionScale scale = DirectionScale::none;
  double lr = 0;
  double keep = 1;       ///< of a parameter, after a decay that is not in the direction
  double eps = 1e-3;     ///< rms
  double threshold = 1;  ///< rms
  double elements = 1;   ///< rms: of the whole tensor

  /// What the direction is multiplied by; w2, u2: sums of squares of parameter and direction.
  LT_HD double factor(double w2, double u2) const {
    if (scale == DirectionScale::none) return lr;
    if (scale == DirectionScale::given) return lr * w2;
    if (scale == DirectionScale::trust) return w2 > 0 && u2 > 0 ? lr * std::sqrt(w2) / std::sqrt(u2) : lr;
    const double w = std::sqrt(w2 / elements), u = std::sqrt(u2 / elements) / threshold;
    return lr * (w > eps ? w : eps) / (u > 1 ? u : 1);
  }
};

/// master = keep master - factor direction. sums: (2) f64, squares of the whole parameter and of the whole
/// direction; undefined with DirectionScale::none. low: copy of master in a half, or undefined.
void apply_direction(Stream& s, Tensor master, Tensor direction, Tensor low, Tensor sums,
                     const DirectionArgs& args);

LT_KERNEL(apply_direction, DType t, void* master, const void* direction, DType low_type, void* low,
          const double* sums, int64_t n, DirectionArgs args)

}  // namespace ltrain
