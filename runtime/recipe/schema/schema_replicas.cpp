// Keys of replicas.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_replica_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) {
    t.push_back(key.when("replicas.count", true, [](const Recipe& r) { return r.replicas.on(); }));
  };
  t.push_back(
      integer("replicas.count", LT_MEMBER(replicas.count),
              "Replicas, each with the ranks of `parallel` and a launcher of its own. They sum gradients "
              "in every step, and a replica that is lost does not stop the others. 0: the job is one.")
          .between(0, 1 << 12));
  add(integer("replicas.min", LT_MEMBER(replicas.min),
              "Replicas that suffice for a step. With fewer the others wait for one that comes back, "
              "for LTRAIN_JOIN_TIMEOUT, and end with 71.")
          .between(1, 1 << 12));
  add(number(
          "replicas.timeout_seconds", LT_MEMBER(replicas.timeout_seconds),
          "Longest wait for a replica that is connected and does not take part in a sum or a vote. It must "
          "be longer than an evaluation or a save.")
          .between(0.1, 86400));
}

}  // namespace ltrain::recipe
