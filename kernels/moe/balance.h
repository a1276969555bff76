// Balance losses of the router. Exact definitions: docs/moe.md.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// load: sum_i f_i P_i (Switch, arXiv:2101.03961; GShard, arXiv:2006.16668, with f over all k choices).
/// uniform: the divergence KL(P || 1/E). f_i: share of the choices of expert i; P_i: mean score.
enum class Balance : uint8_t { load, uniform };

struct BalanceArgs {
  Balance kind = Balance::load;
  int64_t experts = 1;
  double tokens = 1;  ///< tokens of one run over all ranks that share it
  double coeff = 0;
  double loss_scale = 1;  ///< factor of the gradient only
};
/// For each of G runs of tokens: total[0] += this rank's summand of coeff E sum_i f_i P_i, or coeff KL; table
/// = gradient with respect to a token's score of each expert. local, all: (2 G, E) f64, the first rows of
/// Routing::statistics for this rank's tokens and for all ranks' tokens; table: (G, E) f64; total: (1) f64.
void balance_loss(Stream& s, Tensor table, Tensor total, Tensor local, Tensor all, const BalanceArgs& args);

LT_KERNEL(balance_loss, double* table, double* total, const double* local, const double* all, int64_t runs,
          BalanceArgs args)

}  // namespace ltrain
