// Limits of LAMB (arXiv:1904.00962) and 1-bit LAMB (arXiv:2104.06069), separate from the kernels, for
// recipes.
#pragma once
#include <cmath>

#include "kernels/tensor/host_device.h"

namespace ltrain {

/// Limits of a tensor's trust ratio, by DeepSpeed's names.
struct LambLimits {
  double max_coeff = 10, min_coeff = 0.01;  ///< limits of |w| / |u| during warm-up
  double coeff_beta = 0.9;                  ///< decay of the average of |w| / |u|
  double factor_max = 4, factor_min = 0.5;  ///< limits of the factor of the average after warm-up
  double factor_threshold = 0.1;            ///< largest relative change of the factor in a step

  LT_HD static double within(double x, double least, double most) {
    return x < least ? least : x > most ? most : x;
  }
  LT_HD double trust(double w2, double u2) const {
    return w2 > 0 && u2 > 0 ? within(std::sqrt(w2) / std::sqrt(u2), min_coeff, max_coeff) : 1.0;
  }
};

}  // namespace ltrain
