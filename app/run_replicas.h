// `ltrain run` of a recipe with replicas: a launcher for each of them on this machine, and their quorum.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::app {

/// Returns whether this process is the launcher of all replicas, and not of one.
bool starts_replicas(const Recipe& recipe);

/// Ranks of one replica, and GPUs of this machine that the recipe may use (0: CPUs).
struct ReplicaPlaces {
  int ranks = 1, gpus = 0;
};

/// Starts the replicas and waits for them. `arguments`: of a run of the recipe. Returns the exit code of the
/// job: 0 if replicas.min of them are done. Throws Error (usage) if there are too few GPUs.
int run_replicas(const Recipe& recipe, const std::vector<std::string>& arguments,
                 const ReplicaPlaces& places);

/// CUDA_VISIBLE_DEVICES of a replica: its share of the devices that are `visible`; empty: all, by number.
std::string devices_of_replica(const std::string& visible, int replica, int ranks);

/// Refuses a recipe with replicas in a process that no launcher of ltrain has told its number. `starter`:
/// who has started the process.
void check_replica_variables(const Recipe& recipe, const std::string& starter);

}  // namespace ltrain::app
