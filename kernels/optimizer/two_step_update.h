// Updates in two halves, for optimizers that scale a full tensor by its norms. First a direction replaces the
// gradient. After the norms are summed over all ranks with parts of the tensor, the parameter moves along the
// direction.
#pragma once
#include <cmath>

#include "kernels/optimizer/adamw.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Direction of LAMB (arXiv:1904.00962): moments as in AdamW, then grad = mhat / (sqrt(vhat) + eps) +
/// weight_decay master. master is read only. All (n) f32, or all f64.
void lamb_direction(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, bool decay,
                    const OptimizerStep& args);

LT_KERNEL(lamb_direction, DType t, const void* master, void* exp_avg, void* exp_avg_sq, void* grad, int64_t n,
          bool decay, OptimizerStep args)

enum class DirectionScale : uint8_t {
  none,   ///< lr
  trust,  ///< LAMB: lr |w| / |u|; lr if one of them is zero
  given,  ///< 1-bit LAMB: lr sums[0]
  rms,    ///< Adafactor: lr max(eps, rms(w)) / max(1, rms(u) / threshold)
};

struct DirectionArgs {
  DirectionScale scale = DirectionScale::none;
  double lr = 0;
  double keep = 1;       ///< factor of a parameter for a decay outside the direction
  double eps = 1e-3;     ///< rms
  double threshold = 1;  ///< rms
  double elements = 1;   ///< rms: elements of the full tensor

  /// Factor of the direction. w2, u2: sums of squares of parameter and direction.
  LT_HD double factor(double w2, double u2) const {
    if (scale == DirectionScale::none) return lr;
    if (scale == DirectionScale::given) return lr * w2;
    if (scale == DirectionScale::trust) return w2 > 0 && u2 > 0 ? lr * std::sqrt(w2) / std::sqrt(u2) : lr;
    const double w = std::sqrt(w2 / elements), u = std::sqrt(u2 / elements) / threshold;
    return lr * (w > eps ? w : eps) / (u > 1 ? u : 1);
  }
};

/// master = keep master - factor direction. sums: (2) f64, squares of the full parameter and the full
/// direction; undefined with DirectionScale::none. low: 16-bit copy of master, or undefined.
void apply_direction(Stream& s, Tensor master, Tensor direction, Tensor low, Tensor sums,
                     const DirectionArgs& args);

LT_KERNEL(apply_direction, DType t, void* master, const void* direction, DType low_type, void* low,
          const double* sums, int64_t n, DirectionArgs args)

}  // namespace ltrain
