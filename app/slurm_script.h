// The sbatch script of `ltrain slurm`, apart from its command line, for tests and for the plan.
#pragma once
#include <string>
#include <vector>

namespace ltrain::app {

struct SlurmOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int nodes = 1, ranks_per_node = 1, threads_per_rank = 1, gpus_per_node = 0;
  std::string time = "24:00:00";
  int signal_lead_seconds = 120;
  int max_attempts = 20;
  std::string partition, account, job_name;
  std::string program = "ltrain";
};

std::string slurm_script(const SlurmOptions& options);
int parse_slurm_minutes(const std::string& time);  ///< -1 when it is none of Slurm's forms

}  // namespace ltrain::app
