// A program that is run for what it says, within a time: a GPU's kernels that hang or end the process that
// started them can be tried so.
#pragma once
#include <string>
#include <vector>

namespace ltrain {

struct ChildEnd {
  enum class How { exited, signalled, too_long, not_started } how = How::not_started;
  int number = 0;      ///< exit code; signal; errno
  std::string output;  ///< of both its streams, the first 4 KiB
  /// "ended with exit code 3", "was ended by signal 11 (Segmentation fault)", "did not end in 60 s", ...
  std::string text;
};

/// Runs command[0] with its arguments, in this process's environment and a process group of its own, which is
/// killed after `seconds`. A child that even then does not go, as one that waits for a driver, is left.
ChildEnd run_child(const std::vector<std::string>& command, double seconds);

}  // namespace ltrain
