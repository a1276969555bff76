// How far a command is that reads or writes many bytes.
#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace ltrain::app {

/// A line on stderr that is rewritten on a terminal, and a new line every ten seconds elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : quiet_(quiet) {
    const char* term = std::getenv("TERM");
    tty_ = ::isatty(STDERR_FILENO) != 0 && !(term && std::string_view(term) == "dumb");
    next_ = tty_ ? 0.2 : 10;
  }
  ~ProgressLine() { end(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Bytes; `more` stands behind them: ", 1200 tokens".
  void update(int64_t done, int64_t all, const std::string& more = "") {
    const double seconds = elapsed();
    const bool last = done >= all && open_;  // what stays on the terminal is the end
    if (quiet_ || (seconds < next_ && !last)) return;
    next_ = seconds + (tty_ ? 0.2 : 10);
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const long long left = rate > 0 ? static_cast<long long>(static_cast<double>(all - done) / rate) : 0;
    std::fprintf(stderr, "%s%.1f of %.1f MB%s, %.1f MB/s, %lld:%02lld left%s", tty_ ? "\r" : "",
                 static_cast<double>(done) * 1e-6, static_cast<double>(all) * 1e-6, more.c_str(), rate * 1e-6,
                 left / 60, left % 60, tty_ ? "\033[K" : "\n");
    open_ = tty_;
  }
  /// Of what is not bytes.
  void count(int64_t done, int64_t all, const char* what) {
    const double seconds = elapsed();
    if (quiet_ || seconds < next_) return;
    next_ = seconds + (tty_ ? 0.2 : 10);
    std::fprintf(stderr, "%s%lld of %lld %s%s", tty_ ? "\r" : "", static_cast<long long>(done),
                 static_cast<long long>(all), what, tty_ ? "\033[K" : "\n");
    open_ = tty_;
  }
  void end() {
    if (open_) std::fputc('\n', stderr);
    open_ = false;
  }
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  bool quiet_, tty_ = false, open_ = false;
  double next_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ltrain::app
