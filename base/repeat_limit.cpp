#include "base/repeat_limit.h"

#include <fmt/chrono.h>

#include <cctype>
#include <ctime>
#include <utility>

namespace ltrain {
namespace {

constexpr size_t kMostKinds = 1000;  // a text that is never the same must not fill the memory

/// The line with '#' for each run of digits.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit)
      out += c;
    else if (out.empty() || out.back() != '#')
      out += '#';
  }
  return out;
}

}  // namespace

std::string RepeatLimit::pass(const std::string& text, double now) {
  const std::string key = without_numbers(text);
  if (!kinds_.contains(key) && kinds_.size() >= kMostKinds) return text;
  Kind& kind = kinds_[key];
  kind.newest = text;
  if (++kind.seen > kFirst && now - kind.written < kSeconds) {
    if (kind.left_out++ == 0) kind.since = now;
    return "";
  }
  kind.written = now;
  return kind.left_out > 0 ? told(kind) : text;
}

std::vector<std::string> RepeatLimit::rest() {
  std::vector<std::string> lines;
  for (auto& [key, kind] : kinds_)
    if (kind.left_out > 0) lines.push_back(told(kind));
  return lines;
}

std::string RepeatLimit::told(Kind& kind) {
  const int64_t times = std::exchange(kind.left_out, 0);
  return fmt::format("{} (repeated {} time{} since {:%H:%M:%S} UTC)", kind.newest, times,
                     times == 1 ? "" : "s", fmt::gmtime(static_cast<std::time_t>(kind.since)));
}

}  // namespace ltrain
