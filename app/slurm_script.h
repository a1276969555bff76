// The sbatch script of `ltrain slurm`, separate from its command line for tests and for the plan.
#pragma once
#include <string>
#include <vector>

namespace ltrain::app {

struct SlurmOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int nodes = 1, ranks_per_node = 1, threads_per_rank = 1, gpus_per_node = 0;
  std::string time = "24:00:00", mem;  ///< mem: per node in Slurm's form; empty: the site's default
  int signal_lead_seconds = 120;
  int max_attempts = 20;
  std::string partition, account, job_name;
  std::string program = "ltrain";
  std::string output_dir;          ///< output_dir of the recipe, whose checkpoints show progress
  std::string profile;             ///< profile that prices the plan; empty: this machine
  bool force = false;              ///< write a script even if the job does not fit
  std::vector<std::string> notes;  ///< comment lines: sources of the figures above
};

/// Distributes ranks over nodes. `world`: number of ranks of the recipe; 0: given by the options. An option
/// of 0 was not given. `preferred` ranks per node are used if nothing else is given and they divide the
/// ranks. Throws Error (usage) with the nearest valid value.
void place_ranks(SlurmOptions& options, int64_t world, int preferred);

std::string slurm_script(const SlurmOptions& options);
bool is_slurm_memory(const std::string& text);     ///< "16G", "800M", "4096" (MiB)
int parse_slurm_minutes(const std::string& time);  ///< -1 for an invalid form
std::string slurm_time(double seconds);            ///< "0:10:00", "1-12:00:00": full minutes, rounded up

}  // namespace ltrain::app
