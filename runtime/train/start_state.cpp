#include "runtime/train/start_state.h"

#include <algorithm>
#include <iterator>

#include "runtime/weights/frozen_model.h"
#include "runtime/weights/load.h"

namespace ltrain {
namespace {

/// The last checkpoint of this run, or else the state of another run.
TrainingState::Resumed resume_or_load(const Recipe& recipe, TrainingState& state, Communicator& control,
                                      Stream& stream) {
  TrainingState::Resumed resumed = state.resume();
  const LoadParts parts = recipe.checkpoint.load_parts;
  if (resumed.loaded || parts == LoadParts::weights) return resumed;
  const auto from = open_loaded_checkpoint(recipe, true, control, stream, resumed.notes);
  TrainingState::Resumed loaded = parts == LoadParts::all ? state.go_on(*from) : state.take_states(*from);
  loaded.notes.insert(loaded.notes.begin(), resumed.notes.begin(), resumed.notes.end());
  return loaded;
}

/// Initializes weights for a fresh start. Returns notes on weights that do not come from the seed.
std::vector<std::string> begin_weights(const Recipe& recipe, TrainProgram& program, TrainingState& state,
                                       Communicator& control, Stream& stream) {
  program.initialize();
  if (recipe.checkpoint.upcycle) return state.upcycle();
  if (recipe.checkpoint.load_path) return load_weights(recipe, program.parameters(), control, stream);
  return {};
}

}  // namespace

TrainingState::Resumed load_start(const Recipe& recipe, TrainProgram& program, TrainingState& state,
                                  Communicator& control, Stream& stream) {
  TrainingState::Resumed start = resume_or_load(recipe, state, control, stream);
  const auto add = [&](std::vector<std::string> notes) {
    std::ranges::move(notes, std::back_inserter(start.notes));
  };
  if (!start.loaded) add(begin_weights(recipe, program, state, control, stream));
  if (FrozenModel* frozen = program.frozen_model())
    add(load_frozen_model(recipe, frozen->parameters(), control, stream));
  return start;
}

}  // namespace ltrain
