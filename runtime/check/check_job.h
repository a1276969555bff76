// The one check of a job: what `recipe check`, `plan`, `run --dry-run`, `run` and a rank that joins accept
// and refuse.
#pragma once
#include "runtime/launch/environment.h"
#include "runtime/plan/plan.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// The ranks of a job.
struct JobSize {
  int world = 1;
  int ranks_per_node = 1;
  AssumedNode node = {};  ///< where ranks_per_node was assumed
};

/// The ranks that `ltrain run` starts, or joins, for a recipe: those that the environment describes; else
/// launch.ranks_per_node; else the product of the axes; else, with parallel.data: -1, as many as this node
/// has GPUs, and on the CPU one for each tensor * pipeline * context. `gpus`: that this process sees. Error
/// (usage) when they do not fit together.
JobSize job_size(const Recipe& recipe, const LaunchEnvironment& environment, int gpus);
/// The same for commands that start nothing: a recipe whose axes make more ranks than launch.ranks_per_node
/// is one for several nodes. `world`: the ranks, when they were given. `profile`: as in PlanPrices; ranks
/// with device: cuda that nothing lays out on nodes are on nodes of as many cards as that card is sold in.
JobSize planned_size(const Recipe& recipe, const LaunchEnvironment& environment, int gpus, int world = 0,
                     const std::string& profile = "");
/// Error (usage) for more ranks on one host than its launcher can start: each takes three descriptors of it
/// (two pipes and the process), and a process of the system. For commands that start ranks here, or ask
/// whether they could be.
void check_host_ranks(const Recipe& recipe, const JobSize& size);
/// What prices a plan.
struct PlanPrices {
  std::string profile = {};  ///< of find_profile(); empty: this machine's
  std::string trainer = {};  ///< of find_trainer(); empty: ltrain itself
  double expert_skew = 1;    ///< MachineProfile::expert_skew
};
/// Error (usage) where there is no such profile or trainer, or the trainer has no figures of that card.
MachineProfile profile_for(const PlanPrices& prices, DeviceKind device);
/// Error (usage) where `file`, of the key cluster or of --cluster, is no cluster file.
void check_cluster_file(const std::string& file);
/// GPUs that ranks of the recipe could have here: 0 with device: cpu, in a build without CUDA, without a
/// driver.
int gpus_for(const Recipe& recipe);

struct JobChecks {
  /// recipe: what holds on any machine, that is the keys and their rules, the layout, the placements of the
  /// whole step. rank: also the device and the data of this process. node: also the folders that the ranks of
  /// this node offload to. job: also its memory, the checkpoint, and room for the next one.
  enum class Part : uint8_t { recipe, rank, node, job };
  Part part = Part::job;
  bool memory = true;  ///< false: --force
  bool data = true;    ///< false: data.train need not be given
  int gpus_seen = 0;   ///< that this process must see; 0: one for each rank of the node
  PlanPrices prices;
};

struct CheckedJob {
  Recipe recipe;  ///< resolved
  MachineProfile profile;
  Plan plan;  ///< empty with Part::rank
};

/// Creates and changes nothing. Throws Error: usage, data or storage.
CheckedJob check_job(const Recipe& recipe, const JobSize& size, const JobChecks& checks);

/// Everything that can be known about checkpoint.resume and the place for the next checkpoint. Throws Error
/// (storage), before processes are started.
void check_resume(const Recipe& recipe, const Plan& plan);

}  // namespace ltrain
