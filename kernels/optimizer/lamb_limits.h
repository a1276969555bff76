// The bounds of LAMB (arXiv:1904.00962) and 1-bit LAMB (arXiv:2104.06069): apart from the kernels, for
// recipes.
#pragma once
#include <cmath>

#include "kernels/tensor/host_device.h"

namespace ltrain {

/// How far a tensor's step may be from its length, by DeepSpeed's names.
struct LambLimits {
  double max_coeff = 10, min_coeff = 0.01;  ///< of |w| / |u|, in the warm-up
  double coeff_beta = 0.9;                  ///< decay of their average
  double factor_max = 4, factor_min = 0.5;  ///< of what the average is multiplied by after it
  double factor_threshold = 0.1;            ///< how much this may change in a step

  LT_HD static double within(double x, double least, double most) {
    return x < least ? least : x > most ? most : x;
  }
  LT_HD double trust(double w2, double u2) const {
    return w2 > 0 && u2 > 0 ? within(std::sqrt(w2) / std::sqrt(u2), min_coeff, max_coeff) : 1.0;
  }
};

}  // namespace ltrain
