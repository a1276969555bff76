// The sbatch script of `ltrain slurm`, apart from its command line, for tests and for the plan.
#pragma once
#include <string>
#include <vector>

namespace ltrain::app {

struct SlurmOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int nodes = 1, ranks_per_node = 1, threads_per_rank = 1, gpus_per_node = 0;
  std::string time = "24:00:00", mem;  ///< mem: of a node, in Slurm's form; empty: the site's default
  int signal_lead_seconds = 120;
  int max_attempts = 20;
  std::string partition, account, job_name;
  std::string program = "ltrain";
  std::string profile;             ///< that prices the plan; empty: this machine's
  bool force = false;              ///< a script for what does not fit, too
  std::vector<std::string> notes;  ///< comment lines: where the figures above come from
};

/// Ranks are placed on nodes: `world` of the recipe, 0 when the options say how many. What is 0 in the
/// options was not given; `preferred` ranks a node are taken when nothing says otherwise and they divide.
/// Throws Error (usage) with the nearest that would work.
void place_ranks(SlurmOptions& options, int64_t world, int preferred);

std::string slurm_script(const SlurmOptions& options);
bool is_slurm_memory(const std::string& text);     ///< "16G", "800M", "4096" (MiB)
int parse_slurm_minutes(const std::string& time);  ///< -1 when it is none of Slurm's forms
std::string slurm_time(double seconds);            ///< "0:10:00", "1-12:00:00": whole minutes, rounded up

}  // namespace ltrain::app
