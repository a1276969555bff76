// Comparison of a recipe with the checkpoint that a run resumes from: forbidden changes, and notes for the
// user.
#pragma once
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct ResumeChanges {
  DataPosition position;           ///< position at which the data continue
  std::vector<std::string> notes;  ///< lines for the user
};

/// Compares the recipe and data with the checkpoint. Throws Error (usage) if the data differ and
/// checkpoint.resume_data does not allow it, and for impossible changes. `path`: path of the checkpoint, for
/// messages.
ResumeChanges compare_resume(const CheckpointInfo& checkpoint, const std::string& path, const Recipe& recipe,
                             const data::DataIdentity& data);
/// Checks a checkpoint of which only weights and optimizer state are loaded. Data and schedules may differ.
/// Throws Error (usage) if this recipe cannot continue from the state.
void check_states(const CheckpointInfo& checkpoint, const std::string& path, const Recipe& recipe);

}  // namespace ltrain
