// --from-ignore, for commands that read a Hugging Face folder without a recipe.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ltrain::app {

/// `to` must outlive the parsing.
inline void add_from_ignore(CLI::App& command, std::vector<std::string>& to) {
  command
      .add_option("--from-ignore", to,
                  "A key of the folder's config.json that is passed over, as model.from_ignore of a recipe "
                  "does; may be given again")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace ltrain::app
