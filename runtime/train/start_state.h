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

}  // namespace ltrain
