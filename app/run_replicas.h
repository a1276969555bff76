// `ltrain run` of a recipe with replicas: a launcher for each of them on this machine, and their quorum.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::app {

/// Returns whether this process is the launcher of all replicas, and not of one.
bool starts_replicas(const Recipe& recipe);

/// Starts the replicas and waits for them. `arguments`: of a run of the recipe. `ranks`: of one replica.
/// Returns the exit code of the job: 0 if replicas.min of them are done.
int run_replicas(const Recipe& recipe, const std::vector<std::string>& arguments, int ranks);

/// Refuses a recipe with replicas in a process that no launcher of ltrain has told its number. `starter`:
/// who has started the process.
void check_replica_variables(const Recipe& recipe, const std::string& starter);

}  // namespace ltrain::app
