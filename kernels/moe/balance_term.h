// One expert's term of a balance loss, shared by the CPU and CUDA kernels, which are compiled separately.
#pragma once
#include <cmath>

#include "kernels/moe/balance.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {
namespace {

/// Gradient with respect to a token's score of expert i. The loss is its product with the sum of scores.
LT_HD inline double balance_term(const double* chosen, const double* scores, int64_t i,
                                 const BalanceArgs& a) {
  if (a.kind == Balance::uniform) {
    const double mean = scores[i] / a.tokens;  // an expert without any score adds 0 log 0 = 0
    return mean > 0 ? a.coeff * std::log(static_cast<double>(a.experts) * mean) / a.tokens : 0;
  }
  double all = 0;
  for (int64_t e = 0; e < a.experts; ++e) all += chosen[e];
  return all > 0 ? a.coeff * static_cast<double>(a.experts) * chosen[i] / all / a.tokens : 0;
}

}  // namespace
}  // namespace ltrain
