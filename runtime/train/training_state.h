// What a checkpoint holds of a training run, and when it may be written.
#pragma once
#include <memory>
#include <string>

#include "kernels/core/stream.h"
#include "parallel/communicator.h"
#include "parallel/parameter_store.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

class TrainingState {
 public:
  /// `control`: a group of all ranks that nothing else uses.
  TrainingState(const Recipe& recipe, ParameterStore& parameters, Communicator& control, Stream& control_stream, int rank,
                int world_size);
  ~TrainingState();

  struct Resumed {
    int64_t step = 0;     ///< 0: a fresh start
    int64_t samples = 0;  ///< the data cursor
    std::string note;     ///< for the user
  };
  /// Loads what checkpoint.resume asks for. An explicit resume that cannot be met is an error.
  Resumed resume();

  /// Of the last step: only finite states are saved.
  void note_health(double loss, double grad_norm);
  /// Starts a save of the state after `step`; returns a line for the user.
  std::string save(int64_t step, int64_t samples);
  /// Picks up the result of a save that runs in the background; called every step.
  void poll();
  /// Waits for the last save; returns a line for the user, or nothing.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ltrain
