// Checks of checkpoint.resume and of the location of the next checkpoint before processes are started.
#include <algorithm>

#include "base/bytes_text.h"
#include "runtime/check/check_job.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/remote_checkpoints.h"
#include "runtime/checkpoint/resume_changes.h"
#include "runtime/checkpoint/store.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/checkpoint/upcycle.h"
#include "runtime/program/recipe_program.h"
#include "runtime/weights/adapter_folder.h"
#include "runtime/weights/load.h"

namespace ltrain {

namespace {

/// Asks the store of checkpoint.remote, and compares the recipe with the newest copy if it would be resumed
/// from. Returns the step that the run begins from. `begun`: that of the local checkpoint.
int64_t check_remote(const Recipe& recipe, int64_t begun) {
  const std::vector<Candidate> copies = RemoteCheckpoints(*recipe.checkpoint.remote).list();
  const auto usable = [](const Candidate& c) { return c.error.empty() && c.manifest.info.healthy; };
  const auto newest = std::find_if(copies.begin(), copies.end(), usable);
  if (recipe.checkpoint.resume == "auto" && newest != copies.end() && newest->step() > begun) {
    compare_resume(newest->manifest.info, newest->path, recipe, data_identity(recipe));
    begun = newest->step();
  }
  refuse_pinned(copies, begun, end_step(recipe));
  return begun;
}

}  // namespace

void check_resume(const Recipe& recipe, const Plan& plan) {
  auto alone = make_single_group("check", Axis::data);
  auto stream = make_inline_stream("check");
  std::vector<std::string> notes;
  ResumeOptions o = resume_options(recipe);
  o.verify_hashes = false;  // the ranks check every byte when they load
  const GroupSet one;
  ParameterStore parameters;
  const Decoder decoder(recipe.model, parameters, one.groups(), {});
  const ProgramOptions program = program_options(recipe);
  int64_t begun = 0;
  if (const auto reader = CheckpointReader::open(o, *alone, *stream, notes)) {
    check_optimizer(*reader, parameters, program.optimizer);
    compare_resume(reader->info(), reader->path(), recipe, data_identity(recipe));
    begun = reader->info().step;
  } else if (recipe.checkpoint.upcycle) {
    open_dense(recipe, false, *alone, *stream, notes);
  } else if (recipe.checkpoint.load_parts != LoadParts::weights) {
    const auto loaded = open_loaded_checkpoint(recipe, false, *alone, *stream, notes);
    check_optimizer(*loaded, parameters, program.optimizer);
    check_states(loaded->info(), loaded->path(), recipe);
    if (recipe.checkpoint.load_parts == LoadParts::all) {
      compare_resume(loaded->info(), loaded->path(), recipe, data_identity(recipe));
      begun = loaded->info().step;
    }
  } else if (recipe.checkpoint.load_path) {
    open_weights(recipe, false, *alone, *stream, notes);
    if (recipe.checkpoint.adapter) open_adapter_folder(*recipe.checkpoint.adapter, recipe);
  }
  if (recipe.checkpoint.remote) begun = check_remote(recipe, begun);
  if (!saves_at_all(recipe)) return;
  refuse_pinned(list_checkpoints(checkpoint_folder(recipe)), begun, end_step(recipe));
  // Values, and one full-size moment for each state; row and column statistics are small.
  int64_t bytes = 0;
  for (int id = 0; id < parameters.count(); ++id) {
    const ParameterRule rule = parameters.rule_with(id, program.optimizer);
    int64_t states = 1 + (program.ema_decay > 0) +
                     static_cast<int64_t>(optimizer_of(rule.rule).element_states(rule).size());
    // Rounding errors of each rank in the reduction.
    if (program.reduce_code || is_onebit(program.optimizer.rule))
      states += ranks(recipe) / (recipe.parallel.tensor * recipe.parallel.pipeline) + 1;
    const DType type = rule.trains() ? program.precision.master : program.precision.compute;
    bytes += states * parameters.spec(id).shape.elements() * dtype_size(type);
  }
  if (const int64_t free = free_bytes(check_folder_can_be_made(checkpoint_folder(recipe))); free < bytes)
    fail(ExitCode::storage,
         "{}: a checkpoint takes {}, the file system has {} free; free some, or move output_dir",
         checkpoint_folder(recipe), bytes_text(bytes), bytes_text(free));
}

}  // namespace ltrain
