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
              "Steps from one synchronization of sites, or of a fragment, to the next.")
          .between(1, kMaxSteps));
  add(number("diloco.outer_lr", LT_MEMBER(diloco.outer_lr),
             "Learning rate of the outer SGD on the mean change of the weights.")
          .between(1e-6, 10));
  add(number("diloco.outer_momentum", LT_MEMBER(diloco.outer_momentum), "Momentum of the outer SGD.")
          .between(0, 0.9999));
  add(truth("diloco.nesterov", LT_MEMBER(diloco.nesterov), "Nesterov momentum in the outer SGD."));
  add(integer(
          "diloco.fragments", LT_MEMBER(diloco.fragments),
          "Fragments that the embedding, the layers and the head are dealt to in turn. Each is synchronized "
          "every inner_steps steps, the next inner_steps / fragments steps later (Streaming DiLoCo).")
          .between(1, kMaxSteps));
  add(integer(
          "diloco.delay", LT_MEMBER(diloco.delay),
          "Steps from the difference of a fragment's weights to its outer update, in which the difference "
          "is sent while training goes on. Below inner_steps / fragments.")
          .between(0, kMaxSteps));
  add(number("diloco.merge", LT_MEMBER(diloco.merge),
             "Share of its own weights that a site keeps at an outer update: weights become merge * own + "
             "(1 - merge) * shared.")
          .between(0, 0.9999));
  add(integers(
      "diloco.shares", [](Recipe& r) -> std::vector<int64_t>& { return r.diloco.shares; },
      "Shares of each global batch by site, for sites of unequal speed: with [3, 1] the first site trains "
      "three "
      "of four micro-batches, and its change of the weights counts three times. Default: equal shares.",
      1, 1 << 20));
  add(choice(
      "diloco.sum", LT_MEMBER(diloco.sum), {},
      "Sums of differences over sites. int8: a signed byte for each element, with a scale for each 256; "
      "the rounding error is dropped."));
}

}  // namespace ltrain::recipe
