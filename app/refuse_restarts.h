// Refusal of launch.max_restarts where another program starts the ranks.
#pragma once
#include <string_view>

#include "base/error.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

/// Throws Error (usage) if the recipe asks for restarts. `where`: "ranks that another launcher starts".
inline void refuse_restarts(const Recipe& recipe, std::string_view where) {
  if (recipe.launch.max_restarts == 0) return;
  fail(
      ExitCode::usage,
      "launch.max_restarts = {}: works where one `ltrain run` for each machine starts its ranks, not with "
      "{}; "
      "give launch.max_restarts=0 and let that launcher start the job again after exit code 71 (ltrain slurm "
      "--max-attempts, torchrun --max-restarts)",
      recipe.launch.max_restarts, where);
}

}  // namespace ltrain::app
