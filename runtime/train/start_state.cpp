#include "runtime/train/start_state.h"

#include <algorithm>
#include <iterator>

#include "runtime/recipe/rules/rules.h"
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

int64_t end_of_start(const Recipe& recipe, int64_t step, int64_t steps, int64_t restart_end) {
  const int64_t end = end_step(recipe);
  if (restart_end > 0) return std::min(end, restart_end);
  return steps > 0 ? std::min(end, step + steps) : end;
}

void check_end_step(const Recipe& recipe, int64_t step, int64_t end) {
  const DilocoSettings& d = recipe.diloco;
  if (!d.on() || end % d.inner_steps == 0 || recipe::meets_anywhere(recipe)) return;
  const int64_t next = (end / d.inner_steps + 1) * d.inner_steps;
  fail(ExitCode::usage,
       "the run would end at step {}, and sites synchronize every {} steps (diloco.inner_steps); nearest "
       "valid value: --steps {}, which ends at step {}",
       end, d.inner_steps, next - step, next);
}

}  // namespace ltrain
