#include "base/run_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/fd.h"

namespace ltrain {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostOutput = 4096;

/// Milliseconds of a wait that looks at the clock, and at a request to stop, now and then.
int milliseconds_until(Clock::time_point end, int most) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(left < 0 ? 0 : left > most ? most : left + 1);
}

/// True, with its status, if the child has ended by then, and before a request to stop.
bool wait_until(pid_t pid, Clock::time_point end, int& status, const std::stop_token& stop = {}) {
  for (;;) {
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) return true;
    if ((got < 0 && errno != EINTR) || Clock::now() >= end || stop.stop_requested()) return false;
    ::poll(nullptr, 0, 5);
  }
}

ChildEnd not_started(int error) {
  return {ChildEnd::How::not_started, error, "",
          fmt::format("could not be started: {}", std::strerror(error))};
}

/// An anonymous file with this text, at its begin: unlike a pipe it needs nobody who feeds it. Invalid, with
/// errno, if there is no memory.
Fd text_as_file(const std::string& text) {
  Fd fd(::memfd_create("ltrain-input", MFD_CLOEXEC));
  for (size_t at = 0; fd.valid() && at < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fd();
    at += static_cast<size_t>(n);
  }
  if (fd.valid()) ::lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

/// Starts the command in a process group of its own. `given`: its input, else /dev/null; `to`: its output and
/// errors. Returns an errno, or 0.
int start_child(const std::vector<std::string>& command, const Fd& given, const Fd& to, pid_t& pid) {
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& w : words) arguments.push_back(w.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  ::posix_spawn_file_actions_init(&files);
  if (given.valid())
    ::posix_spawn_file_actions_adddup2(&files, given.get(), 0);
  else
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, to.get(), 1);
  ::posix_spawn_file_actions_adddup2(&files, to.get(), 2);
  ::posix_spawnattr_init(&how);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setsigdefault(&how, &all);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawn(&pid, words.at(0).c_str(), &files, &how, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  return error;
}

/// Waits for the end of a child, whose output has ended or whose time is over. A child that goes on is
/// killed.
void take_end(pid_t pid, Clock::time_point end, double seconds, const std::stop_token& stop,
              ChildEnd& result) {
  int status = 0;
  if (!wait_until(pid, end, status, stop)) {
    ::kill(-pid, SIGKILL);
    wait_until(pid, Clock::now() + std::chrono::seconds(5), status);
    result.how = ChildEnd::How::too_long;
    result.text = stop.stop_requested() ? "was ended because the run stops"
                                        : fmt::format("did not end in {:.3g} s", seconds);
  } else if (WIFSIGNALED(status)) {
    result.how = ChildEnd::How::signalled, result.number = WTERMSIG(status);
    result.text = fmt::format("was ended by signal {} ({})", result.number, ::strsignal(result.number));
  } else {
    result.how = ChildEnd::How::exited, result.number = WEXITSTATUS(status);
    result.text = fmt::format("ended with exit code {}", result.number);
  }
}

}  // namespace

ChildEnd run_child(const std::vector<std::string>& command, double seconds, const std::string& input,
                   const std::stop_token& stop) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return not_started(errno);
  const Fd from(ends[0]);
  Fd to(ends[1]);
  const Fd given = input.empty() ? Fd() : text_as_file(input);
  if (!input.empty() && !given.valid()) return not_started(errno);
  pid_t pid = 0;
  const int error = start_child(command, given, to, pid);
  if (error != 0) return not_started(error);
  to.reset();

  ChildEnd result;
  for (char buffer[1024];;) {  // until its output or the time ends
    const int left = milliseconds_until(end, stop.stop_possible() ? 200 : 1000);
    pollfd p{from.get(), POLLIN, 0};
    if (left == 0 || stop.stop_requested()) break;
    if (::poll(&p, 1, left) <= 0) continue;
    const ssize_t n = ::read(from.get(), buffer, sizeof buffer);
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0)
      result.output.append(buffer, std::min(static_cast<size_t>(n), kMostOutput - result.output.size()));
  }
  take_end(pid, end, seconds, stop, result);
  return result;
}

}  // namespace ltrain
