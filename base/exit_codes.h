// The table of exit codes: meaning, and whether another start may help. The launcher, the script of `ltrain
// slurm`, messages and docs/launch.md follow it.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ltrain {

/// Use of another start after an exit code.
enum class StartAgain {
  none,           ///< the job is done
  useless,        ///< it would end the same way
  after_a_fix,    ///< helps once somebody has freed space, or the like
  at_once,        ///< may help: the launcher and a batch script start again by themselves
  after_request,  ///< a signal stopped the job: a batch script goes on, the launcher ends as it was told to
};

struct ExitCodeRow {
  ExitCode code;
  StartAgain start;
  std::string_view meaning;  ///< for the table of docs/launch.md
  std::string_view text;     ///< for messages, in brackets after the number
};

/// Every value of ExitCode once, in ascending order.
std::span<const ExitCodeRow> exit_code_table();

/// Row of a code; null for a number that ltrain does not end with.
const ExitCodeRow* find_exit_code(int code);

/// Returns whether `ltrain run` may start the ranks again by itself (launch.max_restarts).
bool launcher_restarts(int code);

/// Returns whether a batch script should start the job again.
bool script_restarts(int code);

/// Codes other than 0 for which script_restarts() is `restarts`, such as "71, 75" with the separator ", ".
std::string codes_of_scripts(bool restarts, std::string_view separator);

std::string exit_code_text(int code);  ///< "exit code 71 (a rank died or hung: start again)"

/// Table of docs/launch.md, in Markdown.
std::string exit_code_markdown();

}  // namespace ltrain
