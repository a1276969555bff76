// What a recipe changes in a run that goes on from a checkpoint: what it may not, and what the user is told.
#pragma once
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct ResumeChanges {
  DataPosition position;           ///< where the data goes on
  std::vector<std::string> notes;  ///< lines for the user
};

/// Error (usage) for data that is not the checkpoint's, unless checkpoint.resume_data allows it, and for
/// changes that cannot be meant. `path`: of the checkpoint, for messages.
ResumeChanges compare_resume(const CheckpointInfo& checkpoint, const std::string& path, const Recipe& recipe,
                             const data::DataIdentity& data);
/// For a run that takes the weights and the optimizer's states alone, of other data and schedules as it
/// likes: error (usage) where they cannot go on under this recipe.
void check_states(const CheckpointInfo& checkpoint, const std::string& path, const Recipe& recipe);

}  // namespace ltrain
