// --shrink of commands that take a recipe.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ltrain::app {

struct ShrinkOption {
  int ranks = 0;  ///< most ranks; 0: the option was not given

  void add_to(CLI::App& command);
  /// Overrides of the shrunk recipe, with `overrides` of it last. Prints each changed key to standard
  /// error. `write_data`: also writes the synthetic data, unless `overrides` name others.
  std::vector<std::string> apply(const std::string& path, const std::vector<std::string>& overrides,
                                 bool write_data) const;
};

}  // namespace ltrain::app
