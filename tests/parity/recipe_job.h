// The tiny job of a recipe's layout, and the same job on one rank.
#pragma once
#include "runtime/checkpoint/training_state.h"
#include "runtime/recipe/recipe.h"
#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Job of a resolved recipe, with two steps.
TinyOptions job_of(const Recipe& recipe, const std::string& precision);
/// Parts of a recipe that a training state needs: of the job, in `folder`, without threads.
Recipe recipe_of(const TinyOptions& options, const std::string& folder, const std::string& resume);
TinyOptions one_rank(TinyOptions options);

/// Collective calls of all ranks: save a checkpoint after `step` in `output_dir`; load the newest below
/// `path`.
void save_rank(const TinyOptions& options, const TinyRank& at, const std::string& output_dir, int64_t step);
TrainingState::Resumed resume_rank(const TinyOptions& options, const TinyRank& at, const std::string& path);
/// A job that saves when it ends; one that goes on from there.
TinyHooks saves(const TinyOptions& options, const std::string& output_dir, int64_t step);
TinyHooks resumes(const TinyOptions& options, const std::string& output_dir);

}  // namespace ltrain::test
