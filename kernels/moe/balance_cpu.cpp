#include "kernels/moe/balance.h"
#include "kernels/moe/balance_term.h"

namespace ltrain::LT_ISA {

void balance_loss_cpu(double* table, double* total, const double* local, const double* all, int64_t runs,
                      BalanceArgs a) {
  for (int64_t g = 0; g < runs; ++g) {
    const double *chosen = all + g * a.experts, *scores = all + (runs + g) * a.experts;
    const double* mine = local + (runs + g) * a.experts;
    for (int64_t i = 0; i < a.experts; ++i) {
      const double term = balance_term(chosen, scores, i, a);
      table[g * a.experts + i] = term * a.loss_scale;
      *total += term * mine[i];
    }
  }
}

}  // namespace ltrain::LT_ISA
