#include "runtime/program/recipe_program.h"

namespace ltrain {

void run_smaller_steps(const Recipe& r, TrainProgram& program, int64_t site) {
  const BatchRamp& ramp = r.train.batch_ramp;
  if (ramp.start == 0 || r.parallel.pipeline == 1) return;
  const int64_t micros = micro_batches_of_site(r, site);
  for (int64_t batch = ramp.start; batch < r.train.global_batch_size; batch += ramp.increment)
    for (const int64_t step : step_kinds(program.options().optimizer).all()) {
      OptimizerStep args;
      args.step = step;
      program.train_step(
          std::vector<HostBatch>(static_cast<size_t>(batch * micros / r.train.global_batch_size)), args);
    }
}

}  // namespace ltrain
