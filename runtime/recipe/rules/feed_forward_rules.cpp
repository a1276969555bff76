// Rules of the feed-forward.
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void feed_forward_rules(const Recipe& r, const BrokenRule& broken) {
  const FeedForward kind = r.model.traits().feed_forward;
  if (r.model.hidden_act && activation_of(kind) != r.model.hidden_act)
    broken("model.hidden_act",
           fmt::format("{} has a feed-forward without a gate, which this build computes with gelu and "
                       "gelu_pytorch_tanh; nearest valid value: gelu",
                       r.model.family->name),
           {"model.architecture"});
}

}  // namespace ltrain::recipe
