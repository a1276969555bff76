// The sbatch script of `ltrain slurm`, separate from its command line for tests and for the plan.
#pragma once
#include <string>

#include "app/cluster/job_request.h"

namespace ltrain::app {

struct SlurmOptions : JobRequest {
  std::string time, mem;  ///< mem: of a node in Slurm's form
  int signal_lead_seconds = 120;
  int max_attempts = 20;
  std::string partition, account, job_name;
  std::string container_image, apptainer_image;  ///< at most one of them
  std::string container_mounts;                  ///< empty: the working folder
  std::string program = "ltrain";
  std::string output_dir;  ///< output_dir of the recipe, whose checkpoints show progress
};

std::string slurm_script(const SlurmOptions& options);
bool is_slurm_memory(const std::string& text);     ///< "16G", "800M", "4096" (MiB)
int parse_slurm_minutes(const std::string& time);  ///< -1 for an invalid form
std::string slurm_time(double seconds);            ///< "0:10:00", "1-12:00:00": full minutes, rounded up

}  // namespace ltrain::app
