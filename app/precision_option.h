// --precision, for commands that run a model for inference.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace ltrain::app {

/// `to` is a SessionOptions::precision and must outlive the parsing.
inline void add_precision(CLI::App& command, std::string& to) {
  command
      .add_option_function<std::string>(
          "--precision", [&to](const std::string& name) { to = name == "auto" ? "" : name; },
          "Type of weights, activations, keys and values: fp32, bf16, fp64; auto: the run's, fp32 where it "
          "was "
          "trained beside fp32 weights")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp64"}));
}

}  // namespace ltrain::app
