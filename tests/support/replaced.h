// A text with one change.
#pragma once
#include <catch2/catch.hpp>
#include <string>

namespace ltrain::test {

/// `text` with its first `from` replaced; the test fails if it has none.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace ltrain::test
