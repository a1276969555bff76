#include "runtime/launch/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/error.h"

namespace ltrain {
namespace {

std::atomic<int> first_signal{0};
std::atomic<int> interrupts{0};
std::atomic<int64_t> interrupted_ms{0};
std::atomic<bool> flight_asked{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

void on_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal != SIGINT) return;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
  // One Ctrl-C may arrive twice, from the terminal and from a wrapper. Only a later one counts as a second.
  if (interrupts == 0) {
    interrupts = 1;
    interrupted_ms = ms;
  } else if (ms - interrupted_ms > 300) {
    interrupts = 2;
    ::alarm(2);  // for a loop that does not check for requests
  }
}

void on_flight_signal(int) { flight_asked = true; }

bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void on_alarm(int) { ::_exit(static_cast<int>(ExitCode::rank_lost)); }

}  // namespace

void install_stop_signals(bool ignore_interrupt) {
  struct sigaction action {};
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_signal;
  sigset_t unblocked;
  ::sigemptyset(&unblocked);
  for (int s : {SIGTERM, SIGUSR1, SIGHUP, SIGINT}) {
    ::sigaddset(&unblocked, s);
    if (!is_ignored(s)) ::sigaction(s, &action, nullptr);
  }
  if (ignore_interrupt) ::signal(SIGINT, SIG_IGN);
  action.sa_handler = on_flight_signal;  // a launcher starts its ranks with SIGUSR2 ignored until here
  ::sigaction(SIGUSR2, &action, nullptr);
  ::sigaddset(&unblocked, SIGUSR2);
  action.sa_handler = on_alarm;
  ::sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  // The parent of this rank (srun, mpirun, torchrun) may have blocked them.
  ::pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
}

bool take_flight_request() { return flight_asked.exchange(false); }

StopRequest signalled_stop() {
  const int signal = first_signal.load();
  if (signal == 0) return {};
  const char* name = ::sigabbrev_np(signal);
  return {interrupts.load() >= 2 ? StopRequest::Kind::stop_now : StopRequest::Kind::save_and_stop,
          std::string("SIG") + (name ? name : std::to_string(signal))};
}

}  // namespace ltrain
