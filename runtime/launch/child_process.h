// Starting one rank: fork, exec of this very program, its own process group, death with its parent, pipes.
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
  Fd ended;          ///< pidfd: readable when the process has ended; invalid where the kernel has none
};

/// Descriptors that a child keeps, by the variable that tells it which number to look at.
using HandedDescriptors = std::vector<std::pair<std::string, int>>;

/// Call from the main thread: the child is killed when the thread that started it ends. Signals that this
/// process ignores and that its launcher does not send stay ignored in the child. `shares_stdout`: it writes
/// to this process's stdout itself; `output` is at its end at once.
ChildProcess start_child(const std::vector<std::string>& arguments,
                         const std::vector<std::pair<std::string, std::string>>& variables,
                         const HandedDescriptors& handed = {}, bool shares_stdout = false);

}  // namespace ltrain
