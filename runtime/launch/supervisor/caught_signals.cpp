#include "runtime/launch/supervisor/caught_signals.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/limits.h"

namespace ltrain {
namespace {

std::atomic<uint64_t> arrived{0};  // bit n: signal n
std::atomic<int> wake_fd{-1};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_caught(int signal) {
  const int before = errno;
  arrived |= uint64_t{1} << signal;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_fd, &one, sizeof(one));  // fails without a descriptor
  errno = before;
}

}  // namespace

CaughtSignals::CaughtSignals(const std::vector<int>& signals)
    : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.valid()) fail_system("eventfd", errno, ExitCode::internal);
  arrived = 0;
  wake_fd = wake_.get();
  sigset_t unblocked;
  ::sigemptyset(&unblocked);
  for (int s : signals) {
    Earlier e{s, {}};
    ::sigaction(s, nullptr, &e.action);
    if (e.action.sa_handler == SIG_IGN && s != SIGCHLD) continue;
    struct sigaction action {};
    ::sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    action.sa_handler = on_caught;
    ::sigaction(s, &action, nullptr);
    earlier_.push_back(e);
    ::sigaddset(&unblocked, s);
  }
  // The parent may have blocked them.
  ::pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
}

CaughtSignals::~CaughtSignals() {
  for (const Earlier& e : earlier_) ::sigaction(e.signal, &e.action, nullptr);
  wake_fd = -1;
}

std::vector<int> CaughtSignals::take() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof(count));
  const uint64_t bits = arrived.exchange(0);
  std::vector<int> signals;
  for (int s = 1; s < 64; ++s)
    if (bits >> s & 1) signals.push_back(s);
  return signals;
}

}  // namespace ltrain
