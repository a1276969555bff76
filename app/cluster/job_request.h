// Request of a job to a cluster: nodes, ranks, cores, GPUs, memory and time, from the options of a command,
// the recipe and its plan. For the scripts of `ltrain slurm` and `ltrain kube`.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::app {

struct JobRequest {
  std::string recipe;  ///< path
  std::vector<std::string> overrides;
  int nodes = 0, ranks_per_node = 0, threads_per_rank = 0, gpus_per_node = 0;  ///< 0: not given
  std::string profile;             ///< profile that prices the plan; empty: this machine
  std::string cluster;             ///< cluster file; empty: the recipe's
  bool force = false;              ///< a request even if the job does not fit
  std::vector<std::string> notes;  ///< comment lines: sources of the figures
};

/// Figures of the plan that a script may ask for.
struct PlannedRequest {
  int64_t node_mib = 0;  ///< memory of the ranks of a node, and a tenth more
  std::string memory_note;
  double seconds = 0;  ///< time of the run with a margin, at least 600
  std::string time_note;
  std::string network_note;  ///< empty: the profile has the network, or there is none
  std::string output_dir;    ///< output_dir of the recipe
};

/// Declares the recipe and the options of a request.
void add_request_options(CLI::App& command, JobRequest& request);

/// Distributes ranks over nodes. `world`: number of ranks of the recipe; 0: given by the options. `preferred`
/// ranks per node are used if nothing else is given and they divide the ranks. Throws Error (usage) with the
/// nearest valid value.
void place_ranks(JobRequest& request, int64_t world, int preferred);

/// Takes what was not given from `recipe`, the profile and the plan, and adds overrides that the ranks need.
/// Throws Error (usage or memory) for a job that cannot run.
PlannedRequest complete_request(JobRequest& request, Recipe recipe);

/// Name for a job: the file name of the recipe, with `-` in the place of characters other than letters,
/// digits and those of `also`.
std::string job_name_of(const std::string& recipe, const std::string& also);

/// Writes `text` to the file `output`, or to stdout. Throws Error (storage).
void write_script(const std::string& text, const std::string& output);

}  // namespace ltrain::app
