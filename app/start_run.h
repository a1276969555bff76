// The start of a training run, for `ltrain run` and `ltrain replay`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain::app {

struct RunOptions {
  std::string recipe;  ///< YAML file
  std::vector<std::string> overrides;
  bool force = false, dry_run = false;
  int64_t steps = 0;  ///< end after so many steps; 0: as in the recipe
};

/// Checks the recipe, then starts the ranks and waits for them, or trains as the rank that this process is by
/// its environment. Throws Error, or CLI::RuntimeError with the exit code of the ranks.
void start_run(const RunOptions& options);

}  // namespace ltrain::app
