// From what went wrong on all ranks to what the user reads: the cause first, its consequences folded.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace ltrain {

struct Failure {
  enum class Kind { error, dead, silent, overrun, missing };
  Kind kind = Kind::error;
  int rank = -1;
  ExitCode code = ExitCode::rank_lost;
  std::string text;    ///< "was killed by signal 9 (SIGKILL)", or the rank's own error text
  double seconds = 0;  ///< since the coordinator started
};

/// How the run ended, once that is known.
struct Verdict {
  bool failed = false;
  ExitCode code = ExitCode::done;
  int rank = -1;                   ///< the first to fail
  std::vector<std::string> lines;  ///< for the user; the first names rank, host, what and where
  std::string text;                ///< of an error: its own text, which the first line ends with

  /// The same where the user has read `text` before: the first line refers to it.
  std::vector<std::string> lines_after(bool text_was_shown) const;
};

/// `failures` in the order in which they were heard of, at least one. `host` and `where` describe a rank;
/// `where` is empty for one that never joined.
Verdict make_verdict(const std::vector<Failure>& failures, const std::function<std::string(int)>& host,
                     const std::function<std::string(int)>& where);

std::string signal_text(int signal);   ///< "signal 9 (SIGKILL)"
std::string exit_code_text(int code);  ///< "exit code 71 (a rank died or hung; restartable)"

}  // namespace ltrain
