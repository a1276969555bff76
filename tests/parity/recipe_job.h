// The tiny job of a recipe's layout, and the same job on one rank.
#pragma once
#include "runtime/recipe/recipe.h"
#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Of a resolved recipe; two steps of it.
TinyOptions job_of(const Recipe& recipe, const std::string& precision);
/// What a training state asks of a recipe: of the job, in `folder`, without threads.
Recipe recipe_of(const TinyOptions& options, const std::string& folder, const std::string& resume);
TinyOptions one_rank(TinyOptions options);

}  // namespace ltrain::test
