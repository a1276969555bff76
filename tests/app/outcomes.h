// Commands that must succeed, and texts that their output must have.
#pragma once
#include <catch2/catch.hpp>
#include <string>

#include "tests/app/run_program.h"

namespace ltrain::test {

inline bool has(const Outcome& o, const std::string& text) { return o.text.find(text) != std::string::npos; }

/// `ltrain COMMAND`, which must succeed.
inline Outcome succeeds(const TempRun& t, const std::string& command) {
  Outcome o = t.sh(command);
  INFO(command << "\n" << o.text);
  REQUIRE(o.code == 0);
  return o;
}

}  // namespace ltrain::test
