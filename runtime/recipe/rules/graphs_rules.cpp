// Rules of CUDA graph capture.
#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/derived.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void graph_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.cuda_graphs != OverlapChoice::on) return;
  for (const Hindrance& h : graph_hindrances(r))
    broken("cuda_graphs", h.why + "; nearest valid value: off", {h.key});
}

void graph_layout_rules(const Recipe& r, int64_t world_size, const BrokenRule& broken) {
  if (r.cuda_graphs != OverlapChoice::on || world_size == 1) return;
  if (is_onebit(r.optimizer.kind))
    broken("cuda_graphs",
           fmt::format("optimizer.kind: {} sums gradients until its warm-up ends, and none after it, and "
                       "captured work stays as it is; nearest valid value: off",
                       update_rule_name(r.optimizer.kind)),
           {"optimizer.kind"});
}

}  // namespace ltrain::recipe
