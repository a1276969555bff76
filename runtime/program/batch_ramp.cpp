#include "runtime/program/recipe_program.h"

namespace ltrain {

void run_smaller_steps(const Recipe& r, TrainProgram& program) {
  const BatchRamp& ramp = r.train.batch_ramp;
  if (ramp.start == 0 || r.parallel.pipeline == 1) return;
  // Sequences of a micro-batch over all data ranks.
  const int64_t sequences = r.train.micro_batch_size * r.parallel.data;
  for (int64_t batch = ramp.start; batch < r.train.global_batch_size; batch += ramp.increment)
    for (const int64_t step : step_kinds(program.options().optimizer).all()) {
      OptimizerStep args;
      args.step = step;
      program.train_step(std::vector<HostBatch>(static_cast<size_t>(batch / sequences)), args);
    }
}

}  // namespace ltrain
