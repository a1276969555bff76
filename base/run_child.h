// Runs a program for its output, with a time limit. GPU kernels that may hang or kill their process are tried
// this way.
#pragma once
#include <stop_token>
#include <string>
#include <vector>

namespace ltrain {

struct ChildEnd {
  enum class How { exited, signalled, too_long, not_started } how = How::not_started;
  int number = 0;      ///< exit code, signal, or errno
  std::string output;  ///< both output streams, the first 4 KiB
  /// "ended with exit code 3", "was ended by signal 11 (Segmentation fault)", "did not end in 60 s", ...
  std::string text;
};

/// Runs command[0] with its arguments, in this process's environment and its own process group, which is
/// killed after `seconds`. A child that survives even that, such as one waiting for a driver, is left behind.
/// `input`: its standard input. A request of `stop` kills it within 0.2 s, and counts as too long.
ChildEnd run_child(const std::vector<std::string>& command, double seconds, const std::string& input = "",
                   const std::stop_token& stop = {});

}  // namespace ltrain
