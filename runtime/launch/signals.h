// Requests to stop, from signals. The handlers only set flags; the training loop asks for them.
//
// SIGTERM, SIGUSR1, SIGHUP: save and stop (exit 75). Sent again they change nothing: Slurm sends SIGTERM
// twice in 15 ms. SIGINT: the same once; the second one ends the process within 2 s, without a save (exit
// 71).
#pragma once
#include <string>

namespace ltrain {

struct StopRequest {
  enum class Kind { none, save_and_stop, stop_now };
  Kind kind = Kind::none;
  std::string reason;  ///< "SIGTERM", or what the launcher passed on
  explicit operator bool() const { return kind != Kind::none; }
};

/// One that is ignored stays so: whoever started the program wants it (nohup, background jobs of a shell).
/// With `ignore_interrupt` SIGINT does nothing: the launcher gets it and passes it on.
void install_stop_signals(bool ignore_interrupt);
StopRequest signalled_stop();

}  // namespace ltrain
