#include "base/time_scale.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "base/error.h"

using namespace ltrain;

TEST_CASE("the factor of time bounds: a number, or refused with the text that was given") {
  const char* given = std::getenv("LTRAIN_TIME_SCALE");
  const std::string before = given ? given : "";
  const auto scale = [](const char* text) {
    ::setenv("LTRAIN_TIME_SCALE", text, 1);
    return time_scale();
  };
  CHECK(scale("") == 1);
  CHECK(scale("4") == 4);
  CHECK(scale("0.25") == 0.25);
  CHECK(scale("1000") == 1000);
  for (const char* wrong : {"0", "-2", "1001", "four", "4x", "nan", "inf", " 4"})
    CHECK_THROWS_WITH(scale(wrong), "LTRAIN_TIME_SCALE=" + std::string(wrong) +
                                        ": must be a number above 0, up to 1000, e.g. 4");
  given ? ::setenv("LTRAIN_TIME_SCALE", before.c_str(), 1) : ::unsetenv("LTRAIN_TIME_SCALE");
  if (!given) CHECK(time_scale() == 1);
}
