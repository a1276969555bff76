// --profile: what prices a plan.
#pragma once
#include <cstdio>
#include <string>

#include "kernels/base/error.h"
#include "runtime/plan/machine_profile.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

inline constexpr const char* kProfileHelp =
    "Machine profile of `ltrain bench`, or a card (a100, h100, h200); default: this machine's, else a guess";

/// A profile of a GPU prices steps on GPUs, and one of a CPU steps on the CPU; device: auto goes with the
/// profile.
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
