// --device, for commands that run a model without their own recipe.
#pragma once
#include <CLI/CLI.hpp>

#include "runtime/recipe/recipe.h"

namespace ltrain::app {

/// `to` must outlive the parsing.
inline void add_device(CLI::App& command, DeviceChoice& to) {
  command
      .add_option_function<std::string>(
          "--device",
          [&to](const std::string& name) {
            to = name == "cuda"  ? DeviceChoice::cuda
                 : name == "cpu" ? DeviceChoice::cpu
                                 : DeviceChoice::automatic;
          },
          "auto: a GPU where there is one")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}));
}

}  // namespace ltrain::app
