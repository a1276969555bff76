#include "runtime/launch/supervisor/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/printable.h"

namespace ltrain {

std::string PlainText::add(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    if (!escape_.empty()) {
      escape_ += c;
      const bool begins = escape_.size() == 2 && c == '[';
      if (begins || (escape_.size() > 2 && (c < '@' || c > '~'))) continue;
      if (c == 'K' && returned_) line_.clear();
      escape_.clear();
    } else if (c == '\033') {
      escape_ = c;
    } else if (c == '\r') {
      returned_ = true;
    } else if (c == '\n' || line_.size() >= kMostLineBytes) {
      out += line_ + c;
      line_.clear();
      returned_ = false;
    } else {
      if (returned_) line_.clear();
      returned_ = false;
      line_ += c;
    }
  }
  return out;
}

std::string PlainText::finish() {
  std::string rest = std::move(line_);
  *this = {};
  return rest;
}

struct OutputRelay::State {
  State(int fd, size_t most) : fd(fd), most(most) {}

  const int fd;
  const size_t most;
  std::mutex mutex;
  std::condition_variable changed;
  std::string queue;
  size_t written = 0, dropped_lines = 0;
  bool in_line = false;   // the last queued byte is not a line end
  bool skipping = false;  // in a line whose beginning was dropped
  bool busy = false, broken = false, leaving = false;

  /// Reports dropped lines once the queue has room. Call with the lock held.
  void say_what_is_missing() {
    if (dropped_lines == 0) return;
    queue += fmt::format("{}ltrain: {} line{} left out: nobody read this output\n", in_line ? "\n" : "",
                         dropped_lines, dropped_lines == 1 ? "" : "s");
    in_line = false;
    dropped_lines = 0;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !queue.empty() || leaving; });
      if (queue.empty()) return;
      std::string now = std::move(queue);
      queue.clear();
      busy = true;
      lock.unlock();
      bool good = true;
      for (size_t at = 0; good && at < now.size();) {
        const ssize_t n = ::write(fd, now.data() + at, std::min<size_t>(now.size() - at, 4096));
        if (n > 0) {
          at += static_cast<size_t>(n);
          std::lock_guard progress(mutex);
          written += static_cast<size_t>(n);
        } else if (n < 0 && errno == EAGAIN) {  // another process made it non-blocking
          pollfd p{fd, POLLOUT, 0};
          ::poll(&p, 1, 1000);
        } else if (n == 0 || errno != EINTR) {
          good = false;
        }
      }
      lock.lock();
      busy = false;
      broken = broken || !good;
      if (broken) queue.clear(), dropped_lines = 0;
      if (queue.size() < most / 2) say_what_is_missing();
      changed.notify_all();
    }
  }
};

OutputRelay::OutputRelay(int fd, size_t most) : state_(std::make_shared<State>(fd, most)) {
  std::thread([state = state_] { state->run(); }).detach();
}

OutputRelay::~OutputRelay() {
  drain(0.5);
  std::lock_guard lock(state_->mutex);
  state_->leaving = true;
  state_->changed.notify_all();
}

void OutputRelay::write(std::string_view bytes) {
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  if (s.broken) return;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view line = bytes.substr(0, end == std::string_view::npos ? bytes.size() : end + 1);
    const bool whole = end != std::string_view::npos;
    bytes.remove_prefix(line.size());
    if (s.skipping || s.queue.size() + line.size() > s.most) {
      if (!s.skipping) ++s.dropped_lines;
      s.skipping = !whole;
      continue;
    }
    if (!s.in_line && s.queue.size() < s.most / 2) s.say_what_is_missing();
    s.queue += line;
    s.in_line = !whole;
  }
  s.changed.notify_all();
}

bool OutputRelay::drain(double stalled_seconds) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto done = [&] { return (s.queue.empty() && !s.busy) || s.broken; };
  while (!done()) {
    const size_t before = s.written;
    if (!s.changed.wait_for(lock, std::chrono::duration<double>(stalled_seconds), done) &&
        s.written == before)
      return false;
  }
  return !s.broken;
}

}  // namespace ltrain
