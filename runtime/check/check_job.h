// Check of a job. `recipe check`, `plan`, `run --dry-run`, `run` and each joining rank use this one check.
#pragma once
#include "runtime/launch/environment/environment.h"
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Number of ranks of a job.
struct JobSize {
  int world = 1;
  int ranks_per_node = 1;
  AssumedNode node = {};  ///< set if ranks_per_node was assumed
};

/// Ranks that `ltrain run` starts or joins for a recipe: those of the environment; else
/// launch.ranks_per_node; else the product of the axes; else, with parallel.data: -1, the number of GPUs of
/// this node, or on the CPU one for each tensor * pipeline * context. `gpus`: GPUs that this process sees.
/// Throws Error (usage) if they do not fit together.
JobSize job_size(const Recipe& recipe, const LaunchEnvironment& environment, int gpus);
/// Like job_size, for commands that start nothing. A recipe whose axes need more ranks than
/// launch.ranks_per_node is for several nodes. `world`: number of ranks, if given. `profile`: as in
/// PlanPrices. If nothing assigns ranks with device: cuda to nodes, they are on nodes with as many GPUs as
/// the profile's card is sold in.
JobSize planned_size(const Recipe& recipe, const LaunchEnvironment& environment, int gpus, int world = 0,
                     const std::string& profile = "");
/// Throws Error (usage) for more ranks on one host than its launcher can start. Each rank needs three
/// descriptors of the launcher (two pipes and the process) and one process. For commands that start ranks
/// here, or check whether they could.
void check_host_ranks(const Recipe& recipe, const JobSize& size);
/// Inputs that determine the prices of a plan.
struct PlanPrices {
  std::string profile = {};  ///< argument of find_profile(); empty: this machine
  std::string trainer = {};  ///< argument of find_trainer(); empty: ltrain itself
  double expert_skew = 1;    ///< MachineProfile::expert_skew
  std::string links = {};    ///< file of measured links (links_file.h); empty: none
};
/// `ranks_on_host`: ranks that the plan has on each host, for `links`. Throws Error (usage) if the profile,
/// trainer or links do not exist, if the trainer has no figures for that card, or if other links were
/// measured.
MachineProfile profile_for(const PlanPrices& prices, DeviceKind device, int ranks_on_host = 1);
/// Throws Error (usage) if `file`, from the key cluster or --cluster, is not a cluster file.
void check_cluster_file(const std::string& file);
/// GPUs that ranks of the recipe could use here; 0 with device: cpu, in a build without CUDA, or without a
/// driver.
int gpus_for(const Recipe& recipe);

struct JobChecks {
  /// Part of the checks. recipe: checks that hold on any machine: keys and their rules, the layout, the
  /// placements of the full step. rank: also the device and the data of this process. node: also the offload
  /// folders of this node's ranks. job: also memory, the checkpoint, and space for the next one.
  enum class Part : uint8_t { recipe, rank, node, job };
  Part part = Part::job;
  bool memory = true;  ///< false: --force
  bool data = true;    ///< false: data.train may be missing
  int gpus_seen = 0;   ///< GPUs that this process must see; 0: one per rank of the node
  PlanPrices prices;
};

struct CheckedJob {
  Recipe recipe;  ///< resolved
  MachineProfile profile;
  Plan plan;                 ///< empty with Part::rank
  std::string offload = {};  ///< OffloadChoice::text; "": the recipe leaves nothing to the plan
};

/// Checks a job without creating or changing anything. Throws Error: usage, data or storage.
CheckedJob check_job(const Recipe& recipe, const JobSize& size, const JobChecks& checks);

/// Checks checkpoint.resume and the location of the next checkpoint as far as possible before processes are
/// started. Throws Error (storage).
void check_resume(const Recipe& recipe, const Plan& plan);

}  // namespace ltrain
