// The state that a run begins with: its own checkpoint, another run's, weights, or values from the seed.
#pragma once
#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Collective. Loads the newest checkpoint of this run, or the state of another run that checkpoint.load
/// names, or else initializes the weights; and the weights of a teacher. Returns where the run is, with notes
/// for the user. Throws Error (usage, storage) for a state that cannot be loaded.
TrainingState::Resumed load_start(const Recipe& recipe, TrainProgram& program, TrainingState& state,
                                  Communicator& control, Stream& stream);

/// Last step of a start after `step`: that of the recipe, or of the start before it (`restart_end`, 0: none),
/// or `steps` later (0: not given).
int64_t end_of_start(const Recipe& recipe, int64_t step, int64_t steps, int64_t restart_end);
/// Throws Error (usage) if sites do not synchronize after the last step.
void check_end_step(const Recipe& recipe, int64_t step, int64_t end);

}  // namespace ltrain
