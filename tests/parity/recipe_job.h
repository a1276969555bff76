// The tiny job of a recipe's layout, and the same job on one rank.
#pragma once
#include "runtime/recipe/recipe.h"
#include "tests/support/tiny_job.h"

namespace ltrain::test {

/// Of a resolved recipe; two steps of it.
TinyOptions job_of(const Recipe& recipe, const std::string& precision);
TinyOptions one_rank(TinyOptions options);

}  // namespace ltrain::test
