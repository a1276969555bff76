// Lines of JSON in the log, and lines that repeat.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "base/log.h"
#include "base/repeat_limit.h"

using namespace ltrain;
using nlohmann::json;

TEST_CASE("lines of a library become lines of JSON, and those that are JSON stay as they are") {
  const std::string ours = "{\"time\":\"2026-01-01T00:00:00.000Z\",\"level\":\"info\",\"message\":\"x\"}\n";
  const std::string all = json_lines("NCCL \"WARN\" a\\b\t\x1b[1m\xff\n" + ours + "\nthe end", 3);
  std::vector<std::string> lines;
  for (size_t at = 0; at < all.size(); at = all.find('\n', at) + 1)
    lines.push_back(all.substr(at, all.find('\n', at) + 1 - at));
  REQUIRE(lines.size() == 4);
  const json first = json::parse(lines[0]);
  CHECK(first["message"] == "NCCL \"WARN\" a\\b\\t\\x1b[1m\\xff");  // printable() shows it so
  CHECK((first["rank"] == 3 && first["level"] == "info" && !first.contains("step")));
  CHECK(first["time"].get<std::string>().size() == 24);
  CHECK(lines[1] == ours);
  CHECK(lines[2] == "\n");
  CHECK(json::parse(lines[3])["message"] == "the end");
  CHECK(json_lines("", 0).empty());
}

TEST_CASE("a line of JSON stays shorter than a launcher splits, and ends with a whole character") {
  std::string text;
  while (text.size() < (100 << 10)) text += "\xc3\xa4\xe2\x82\xac";
  const std::string line = json_lines(text + "\n", 0);
  CHECK(line.size() < (64 << 10));
  CHECK_NOTHROW(json::parse(line));
}

TEST_CASE("of warnings that differ in numbers alone a few are written, then one a minute with a count") {
  RepeatLimit limit;
  const auto pass = [&](int step, double now) {
    return limit.pass("step " + std::to_string(step) + ": no update was made", now);
  };
  for (int i = 1; i <= 5; ++i)
    CHECK(pass(i, 1800000000 + i) == "step " + std::to_string(i) + ": no update was made");
  for (int i = 6; i <= 50; ++i) CHECK(pass(i, 1800000000 + i).empty());
  CHECK(limit.pass("step 51: something else", 1800000051) == "step 51: something else");
  // The first one that was left out came at 08:00:06.
  CHECK(pass(100, 1800000066) == "step 100: no update was made (repeated 45 times since 08:00:06 UTC)");
  CHECK(pass(101, 1800000067).empty());
  CHECK(limit.rest() ==
        std::vector<std::string>{"step 101: no update was made (repeated 1 time since 08:01:07 UTC)"});
  CHECK(limit.rest().empty());
  CHECK(pass(102, 1800000200) == "step 102: no update was made");
}
