// The commands of the program as data, from CLI11's table: for man pages and shell completion.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ltrain::app {

struct CommandOption {
  std::vector<std::string> names;  ///< "--steps", "-h"; empty for a positional argument
  std::string positional;          ///< "recipe"; empty for an option
  std::string help;
  bool takes_value = false, required = false, several = false;
  std::vector<std::string> choices;  ///< values that are accepted; empty: others, too
};

struct CommandInfo {
  std::vector<std::string> path;  ///< {"data", "build"}; empty: the program
  std::string help, footer;
  bool overrides = false;  ///< takes settings of recipes: key=value
  std::vector<CommandOption> options;
  std::vector<CommandInfo> commands;
};

/// All commands and options that --help shows, in its order.
CommandInfo command_tree(const CLI::App& program);

/// Calls `f` for `info` and every command below it, parents first.
template <class F>
void for_each_command(const CommandInfo& info, const F& f) {
  f(info);
  for (const CommandInfo& c : info.commands) for_each_command(c, f);
}

/// Completion script for "bash", "zsh" or "fish". `keys`: keys of recipes.
std::string completion_script(const CommandInfo& program, const std::string& shell,
                              const std::vector<std::string>& keys);

/// Page of a command in section 1, in roff. `version` is printed at its foot.
std::string man_page(const CommandInfo& command, const std::string& version);
/// Name of its file: "ltrain-data-build.1".
std::string man_page_name(const CommandInfo& command);

}  // namespace ltrain::app
