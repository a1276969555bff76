#include "kernels/moe/router_bias.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void move_router_bias(Stream& s, Tensor bias, Tensor chosen, double rate, const BiasTarget& target) {
  LT_CHECK(bias.shape.rank == 2 && chosen.shape.rank == 2 && chosen.shape[0] == bias.shape[0] &&
               chosen.cols() >= bias.cols(),
           "router bias: expected bias (layers, E) and choices (layers, at least E), got {} and {}",
           to_string(bias.shape), to_string(chosen.shape));
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("move_router_bias", OpClass::elementwise, 3.0 * bias.elements(), {bias}, {bias}));
    place(s, "move_router_bias", Rule::elementwise, {bias}, {bias, chosen});
    return;
  }
  LT_LAUNCH(s, move_router_bias, bias.dtype, bias.data, chosen.ptr<double>(), bias.shape[0], bias.cols(),
            chosen.cols(), rate, target);
}

}  // namespace ltrain
