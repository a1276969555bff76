// Start of a rank: fork, exec of this program, a process group of its own, death with its parent, pipes.
#pragma once
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace ltrain {

struct ChildProcess {
  pid_t pid = -1;
  Fd output, error;  ///< read ends of its stdout and stderr
  Fd ended;          ///< pidfd: readable when the process has ended; invalid if the kernel has no pidfd
};

/// Descriptors that a child keeps. Each is passed by number in a variable of this name.
using HandedDescriptors = std::vector<std::pair<std::string, int>>;

/// Starts a child. Call it from the main thread, because the child is killed when the thread that started it
/// ends. Signals that this process ignores stay ignored in the child, unless its launcher sends them.
/// SIGTERM, SIGUSR1 and SIGHUP are blocked until the child has its handlers (install_stop_signals,
/// CaughtSignals). `shares_stdout`: the child writes to this process's stdout itself, and `output` is at its
/// end at once.
ChildProcess start_child(const std::vector<std::string>& arguments,
                         const std::vector<std::pair<std::string, std::string>>& variables,
                         const HandedDescriptors& handed = {}, bool shares_stdout = false);

}  // namespace ltrain
