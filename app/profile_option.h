// --profile: prices of a plan.
#pragma once
#include <cstdio>
#include <string>

#include "base/error.h"
#include "runtime/check/check_job.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

inline constexpr const char* kProfileHelp =
    "Machine profile of `ltrain bench`, a profile file, or a card that is built in (`ltrain profile list`); "
    "default: this machine's, else a guess";
inline constexpr const char* kTrainerHelp =
    "Price the steps as another trainer runs them: one that is built in (`ltrain profile list`), or a file "
    "(docs/machines.md)";
inline constexpr const char* kClusterHelp =
    "Cluster file: nodes, cards and networks (docs/machines.md); default: the recipe's `cluster`";

/// Sets the profile to a cluster file: that of --cluster, else the recipe's if --profile is not given.
inline void take_cluster(std::string& profile, const std::string& option, const Recipe& recipe) {
  if (!profile.empty() && !option.empty())
    fail(ExitCode::usage, "set only one of --profile {} and --cluster {}", profile, option);
  const std::string file = !option.empty() ? option : profile.empty() ? recipe.cluster.value_or("") : "";
  if (file.empty()) return;
  check_cluster_file(file);
  profile = file;
}

/// Fits the device to the profile. A GPU profile prices steps on GPUs, a CPU profile steps on the CPU.
/// device: auto follows the profile.
inline void fit_device(Recipe& recipe, const std::string& name) {
  const bool gpu = find_profile(name).device_bytes > 0;
  const char *of = gpu ? "GPU" : "CPU", *device = gpu ? "cuda" : "cpu";
  const DeviceChoice fits = gpu ? DeviceChoice::cuda : DeviceChoice::cpu;
  if (recipe.device == fits) return;
  if (recipe.device != DeviceChoice::automatic)
    fail(ExitCode::usage,
         "--profile {}: has the rates of a {}, and the recipe has device: {}; nearest valid value: a profile "
         "of a {}, or device={}",
         name, of, to_string(recipe.device), gpu ? "CPU" : "GPU", device);
  recipe.device = fits;
  std::fprintf(stderr, "note: device: auto is planned as %s, which the profile %s is of\n", device,
               name.c_str());
}

}  // namespace ltrain::app
