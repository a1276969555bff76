// Rules of mixes of data.
#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void data_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.data.stages.empty()) return;
  const DataStage& last = r.data.stages.back();
  if (last.from_step > r.train.train_steps)
    broken("data.stages",
           fmt::format("stage {} begins at step {}, after the last of train.train_steps = {}; nearest valid "
                       "value of its from_step: {}",
                       r.data.stages.size(), last.from_step, r.train.train_steps, r.train.train_steps),
           {"train.train_steps"});
}

}  // namespace ltrain::recipe
