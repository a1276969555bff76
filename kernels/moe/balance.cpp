#include "kernels/moe/balance.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void balance_loss(Stream& s, Tensor table, Tensor total, Tensor local, Tensor all, const BalanceArgs& a) {
  const int64_t runs = table.shape[0];
  LT_CHECK(table.shape == Shape({runs, a.experts}) && local.shape == Shape({2 * runs, a.experts}) &&
               all.shape == local.shape,
           "balance loss: expected table ({}, {}) and sums ({}, {}), got table {} and sums {} and {}", runs,
           a.experts, 2 * runs, a.experts, to_string(table.shape), to_string(local.shape),
           to_string(all.shape));
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("balance_loss", OpClass::elementwise, 6.0 * all.elements(), {table}, {local, all}));
    place(s, "balance_loss", Rule::elementwise, {table}, {all});
    // Linear in this rank's own sums.
    place(s, "balance_loss", Rule::linear, {total}, {local}, /*accumulate=*/true);
    return;
  }
  LT_LAUNCH(s, balance_loss, table.ptr<double>(), total.ptr<double>(), local.ptr<double>(), all.ptr<double>(),
            runs, a);
}

}  // namespace ltrain
