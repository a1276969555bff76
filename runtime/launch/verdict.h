// Report for the user from the failures of all ranks: the cause first, its consequences merged.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace ltrain {

struct Failure {
  enum class Kind { error, dead, silent, overrun, missing };
  Kind kind = Kind::error;
  int rank = -1;
  ExitCode code = ExitCode::rank_lost;
  std::string text;    ///< "was killed by signal 9 (SIGKILL)", or the rank's own error text
  double seconds = 0;  ///< since the coordinator started
};

/// Outcome of the run, once it is known.
struct Verdict {
  bool failed = false;
  ExitCode code = ExitCode::done;
  int rank = -1;                   ///< first rank that failed
  std::vector<std::string> lines;  ///< for the user; the first names rank, host, error and location
  std::string text;                ///< text of the error, with which the first line ends
  /// How the run ended, without rank, host and times: equal for two runs that end the same way. "a rank was
  /// killed by signal 9 (SIGKILL)".
  std::string how;

  /// The same lines for a user who has read `text` before: the first line refers to it.
  std::vector<std::string> lines_after(bool text_was_shown) const;
};

/// `failures`: at least one, in the order of arrival. `host` and `where` describe a rank. `where` returns an
/// empty text for a rank that never joined.
Verdict make_verdict(const std::vector<Failure>& failures, const std::function<std::string(int)>& host,
                     const std::function<std::string(int)>& where);

std::string signal_text(int signal);  ///< "signal 9 (SIGKILL)"

}  // namespace ltrain
