#include "base/log.h"

#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain {
namespace {

constexpr int kMostWaitMs = 1000;
constexpr size_t kMostWrite = 4096;  // fits in a pipe

/// Writes to stderr without blocking longer than kMostWaitMs on a reader.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    for (size_t at = 0; at < text.size();) {
      pollfd p{STDERR_FILENO, POLLOUT, 0};
      const int ready = ::poll(&p, 1, kMostWaitMs);
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return;
      const ssize_t n = ::write(STDERR_FILENO, text.data() + at, std::min(text.size() - at, kMostWrite));
      if (n < 0 && errno != EINTR) return;
      if (n > 0) at += static_cast<size_t>(n);
    }
  }
  void flush_() override {}
};

spdlog::level::level_enum level_of(LogLevel level) {
  return level == LogLevel::error     ? spdlog::level::err
         : level == LogLevel::warning ? spdlog::level::warn
                                      : spdlog::level::info;
}

spdlog::logger& logger() {
  static spdlog::logger* const log = [] {  // never destroyed: threads may log until the process ends
    auto* made = new spdlog::logger("ltrain", std::make_shared<StderrSink>());
    made->set_formatter(
        std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::local, ""));
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *log;
}

}  // namespace

void log_lines(LogLevel level, std::string_view text) {
  if (logger().should_log(level_of(level))) logger().log(level_of(level), printable_lines(text));
}

void read_log_level() {
  const char* given = std::getenv("LTRAIN_LOG_LEVEL");
  if (!given || !*given) return;
  const std::string_view value = given;
  if (value == "info") return logger().set_level(spdlog::level::info);
  if (value == "warning") return logger().set_level(spdlog::level::warn);
  if (value == "error") return logger().set_level(spdlog::level::err);
  fail(ExitCode::usage, "LTRAIN_LOG_LEVEL=\"{}\": must be info, warning or error", printable(value));
}

}  // namespace ltrain
