// Keys of DiLoCo.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_diloco_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) {
    t.push_back(key.when("diloco.sites", true, [](const Recipe& r) { return r.diloco.on(); }));
  };
  t.push_back(integer("diloco.sites", LT_MEMBER(diloco.sites),
                      "Sites that the data ranks are divided into, of full nodes each. A site trains on its "
                      "share of each global batch, and sums gradients over its own ranks. 0: no DiLoCo.")
                  .between(0, 1 << 16));
  add(integer("diloco.inner_steps", LT_MEMBER(diloco.inner_steps),
              "Steps from one synchronization of sites to the next, in which sites exchange nothing.")
          .between(1, kMaxSteps));
  add(number("diloco.outer_lr", LT_MEMBER(diloco.outer_lr),
             "Learning rate of the outer SGD on the mean change of the weights.")
          .between(1e-6, 10));
  add(number("diloco.outer_momentum", LT_MEMBER(diloco.outer_momentum), "Momentum of the outer SGD.")
          .between(0, 0.9999));
  add(truth("diloco.nesterov", LT_MEMBER(diloco.nesterov), "Nesterov momentum in the outer SGD."));
}

}  // namespace ltrain::recipe
