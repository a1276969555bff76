#include "base/log.h"

#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <fmt/chrono.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
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

constexpr int kText = -2;               // rank while lines are text
std::atomic<int> json_rank{kText};      // set by log_as_json()
std::atomic<int64_t> present_step{-1};  // set by set_log_step()

/// A printable text inside a JSON string, cut so that a line stays below what a launcher splits.
std::string escaped(std::string_view text) {
  constexpr size_t kMost = 40 << 10;
  size_t end = std::min(text.size(), kMost);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
    --end;  // whole characters
  std::string out;
  for (const char c : text.substr(0, end)) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) < 32)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + (end < text.size() ? " ..." : "");
}

/// The printable lines of a message without the last line end.
std::string without_end(std::string_view message) {
  std::string text = printable_lines(message);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

constexpr std::string_view kJsonBegin = "{\"time\":";

std::string json_line(LogLevel level, std::string_view message, int rank, int64_t step) {
  const auto now = std::chrono::system_clock::now();
  const auto since_1970 =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const char* name = level == LogLevel::error ? "error" : level == LogLevel::warning ? "warning" : "info";
  return fmt::format("{}\"{:%Y-%m-%dT%H:%M:%S}.{:03d}Z\",\"level\":\"{}\"{}{},\"message\":\"{}\"}}\n",
                     kJsonBegin, fmt::gmtime(std::chrono::system_clock::to_time_t(now)), since_1970 % 1000,
                     name, rank < 0 ? "" : fmt::format(",\"rank\":{}", rank),
                     step < 0 ? "" : fmt::format(",\"step\":{}", step), escaped(without_end(message)));
}

}  // namespace

void log_lines(LogLevel level, std::string_view text) {
  if (logger().should_log(level_of(level))) logger().log(level_of(level), log_text(level, text));
}

void log_as_json(int rank) { json_rank = rank; }

bool logs_json() { return json_rank != kText; }

void set_log_step(int64_t step) { present_step = step; }

std::string log_text(LogLevel level, std::string_view message) {
  return logs_json() ? json_line(level, message, json_rank, present_step) : printable_lines(message);
}

std::string as_logged(std::string_view message) {
  return logs_json() ? escaped(without_end(message)) : printable_lines(message);
}

std::string json_lines(std::string_view lines, int rank) {
  std::string out;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1);
    const std::string_view line = lines.substr(0, end + 1);
    if (line.starts_with(kJsonBegin) || line == "\n")
      out += line;
    else
      out += json_line(LogLevel::info, line, rank, -1);
    lines.remove_prefix(line.size());
  }
  return out;
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
