// Progress of a command that reads or writes many bytes.
#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace ltrain::app {

/// Returns whether stderr is a terminal on which a line can be redrawn.
inline bool stderr_redraws() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && !(term && std::string_view(term) == "dumb");
}

/// A progress line on stderr: redrawn on a terminal, else a new line every ten seconds.
class ProgressLine {
 public:
  /// `unit`: name of the printed unit. `scale`: counted items per unit.
  explicit ProgressLine(bool quiet, std::string unit = "MB", double scale = 1e6)
      : quiet_(quiet), unit_(std::move(unit)), scale_(scale) {
    tty_ = stderr_redraws();
    next_ = tty_ ? 0.2 : 10;
  }
  ~ProgressLine() {
    if (open_) std::fputc('\n', stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `more`: text after the counts, such as ", 1200 tokens".
  void update(int64_t done, int64_t all, const std::string& more = "") {
    const double seconds = elapsed();
    const bool last = done >= all && open_;  // leave the final state on the terminal
    if (quiet_ || (seconds < next_ && !last)) return;
    next_ = seconds + (tty_ ? 0.2 : 10);
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const long long left = rate > 0 ? static_cast<long long>(static_cast<double>(all - done) / rate) : 0;
    const int digits = scale_ > 1 ? 1 : 0;
    std::fprintf(stderr, "%s%.*f of %.*f %s%s, %.1f %s/s, %lld:%02lld left%s", tty_ ? "\r" : "", digits,
                 static_cast<double>(done) / scale_, digits, static_cast<double>(all) / scale_, unit_.c_str(),
                 more.c_str(), rate / scale_, unit_.c_str(), left / 60, left % 60, tty_ ? "\033[K" : "\n");
    open_ = tty_;
  }
  /// Removes the line from a terminal, so that the next output replaces it.
  void clear() {
    if (open_) std::fputs("\r\033[K", stderr);
    open_ = false;
  }
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  bool quiet_;
  std::string unit_;
  double scale_;
  bool tty_ = false, open_ = false;
  double next_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ltrain::app
