// Rules for buckets in the current step.
#pragma once
#include "parallel/optim/optimizer.h"
#include "parallel/zero/parameter_layout.h"

namespace ltrain {

struct StepRules {
  const OptimizerSettings& optimizer;
  bool planned = false;  ///< on meta: a plan is of the steps after the warm-up of routers
  int64_t step = 1;      ///< numbered from 1, skipped steps included
  int64_t micros = 1;    ///< backward passes

  /// True if the bucket's weights are updated.
  bool moves(const Bucket& b) const {
    return b.kind.rule.trains() && (planned || step > optimizer.router_warmup || b.kind.rule.router);
  }
  bool sums_gradients(const Bucket& b) const {
    return optimizer_of(b.kind.rule.rule).sums_gradients(optimizer, step);
  }
  bool updates_elements(const Bucket& b) const {
    return optimizer_of(b.kind.rule.rule).updates_elements(optimizer, step);
  }
};

}  // namespace ltrain
