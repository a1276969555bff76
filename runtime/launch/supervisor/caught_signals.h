// Signals of a process as a descriptor that poll() can wait for.
//
// A signal handler belongs to the process: it runs on whichever thread the kernel chooses. A signal mask, and
// with it signalfd, belongs to a thread: a thread that a GPU driver or a profiler starts with an empty mask
// would take the signal away. This class therefore uses handlers and never relies on masks.
#pragma once
#include <signal.h>

#include <vector>

#include "base/fd.h"

namespace ltrain {

/// Catches signals from construction to destruction, then restores the earlier dispositions. A process may
/// have one object at a time. Construct it on the main thread, which unblocks the signals for itself.
class CaughtSignals {
 public:
  /// Signals that the process ignores stay ignored, as nohup and background jobs of a shell expect. SIGCHLD
  /// is always caught.
  explicit CaughtSignals(const std::vector<int>& signals);
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  /// Readable if a signal has arrived since the last call of take().
  int fd() const { return wake_.get(); }
  /// Signals that have arrived since the last call, each once, in ascending order.
  std::vector<int> take();

 private:
  struct Earlier {
    int signal;
    struct sigaction action;
  };
  Fd wake_;
  std::vector<Earlier> earlier_;
};

}  // namespace ltrain
