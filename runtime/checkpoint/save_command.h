// telemetry.on_save: a command that is run for each saved checkpoint while training continues, such as an
// export, a sample of text, or an evaluation.
#pragma once
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/checkpoint/after_save.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Runs the command, and ends it once a stop is requested. Returns its output, or a warning with the reason
/// why it failed. `recipe` has telemetry.on_save.
std::vector<std::string> run_save_command(const Recipe& recipe, const std::stop_token& stop,
                                          const SavedCheckpoint& checkpoint);

}  // namespace ltrain
