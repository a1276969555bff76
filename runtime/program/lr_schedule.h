// Learning rate and weight decay of each step.
#pragma once
#include "kernels/optimizer/optimizer_step.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Learning rate of update `step`, counted from 1. Steps without an update do not count. Linear warm-up to
/// optimizer.lr over lr_warmup_steps, then the decay style down to min_lr at lr_decay_steps, then min_lr
/// (Megatron-LM's definitions).
double learning_rate(const OptimizerKeys& optimizer, const LrSchedule& schedule, int64_t step);

/// Weight decay of update `step` (from 1) of `steps`: from schedule.start_weight_decay at the first to
/// schedule.end_weight_decay at the last (Megatron-LM's get_wd).
double weight_decay(const OptimizerKeys& optimizer, const LrSchedule& schedule, int64_t step, int64_t steps);

/// Arguments of update `update` (from 1) of this run; `earlier`: updates that the optimizer's moments had
/// before.
OptimizerStep optimizer_step(const Recipe& recipe, int64_t update, int64_t earlier);

}  // namespace ltrain
