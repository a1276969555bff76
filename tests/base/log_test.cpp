// Log lines on standard error, and the level that hides them.
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <string>

#include "base/error.h"

using namespace ltrain;
using Catch::Contains;

namespace {

/// Bytes on standard error while `body` runs; fewer than a pipe holds.
std::string on_stderr(const std::function<void()>& body) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  body();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(ends[1]);
  std::string text(4096, 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
  ::close(ends[0]);
  return text;
}

struct Level {
  explicit Level(const char* value) {
    ::setenv("LTRAIN_LOG_LEVEL", value, 1);
    read_log_level();
  }
  ~Level() {
    ::setenv("LTRAIN_LOG_LEVEL", "info", 1);
    read_log_level();
    ::unsetenv("LTRAIN_LOG_LEVEL");
  }
};

}  // namespace

TEST_CASE("a log line is the message as it is, printable, whatever it contains") {
  CHECK(on_stderr([] { log_lines(LogLevel::info, "ltrain: 100 % of {} and %s"); }) ==
        "ltrain: 100 % of {} and %s\n");
  CHECK(on_stderr([] { log_lines(LogLevel::error, "first\nsecond\x1b[2J"); }) == "first\nsecond\\x1b[2J\n");
}

TEST_CASE("LTRAIN_LOG_LEVEL hides messages of lower levels, and refuses other words") {
  const auto all = [] {
    log_lines(LogLevel::info, "i");
    log_lines(LogLevel::warning, "w");
    log_lines(LogLevel::error, "e");
  };
  CHECK(on_stderr(all) == "i\nw\ne\n");
  {
    const Level level("warning");
    CHECK(on_stderr(all) == "w\ne\n");
  }
  {
    const Level level("error");
    CHECK(on_stderr(all) == "e\n");
  }
  ::setenv("LTRAIN_LOG_LEVEL", "quiet", 1);
  CHECK_THROWS_WITH(read_log_level(), Contains("LTRAIN_LOG_LEVEL=\"quiet\": must be info, warning or error"));
  ::unsetenv("LTRAIN_LOG_LEVEL");
}
