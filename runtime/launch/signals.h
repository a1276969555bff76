// Stop requests from signals. The handlers only set flags, which the training loop queries.
//
// SIGTERM, SIGUSR1, SIGHUP: save and stop (exit 75). Repeats have no effect: Slurm sends SIGTERM twice in 15
// ms. SIGUSR2 asks for the flight recorder's file and stops nothing. SIGINT: the same once; a second one ends
// the process within 2 s without a save (exit 71).
#pragma once
#include <string>

namespace ltrain {

struct StopRequest {
  enum class Kind { none, save_and_stop, stop_now };
  Kind kind = Kind::none;
  std::string reason;  ///< "SIGTERM", or the reason from the launcher
  explicit operator bool() const { return kind != Kind::none; }
};

/// Installs the handlers. An ignored signal stays ignored, because the parent wants it (nohup, background
/// jobs of a shell). With `ignore_interrupt`, SIGINT has no effect: the launcher gets it and passes it on.
void install_stop_signals(bool ignore_interrupt);
StopRequest signalled_stop();
/// Returns whether SIGUSR2 has come since the last call: somebody wants the flight recorder's file.
bool take_flight_request();

}  // namespace ltrain
