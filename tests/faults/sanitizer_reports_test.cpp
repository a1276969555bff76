// Negative control of the tests under sanitizers: a defect in a program that a test starts does not go
// unseen, wherever that program's stderr goes and however it ends.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/outcome.h"

using namespace ltrain::test;

TEST_CASE("a defect of the kind that the environment asks for", "[.defective_child]") {
  const std::string kind = std::getenv("LTRAIN_TEST_DEFECT");
  [[maybe_unused]] static volatile int sink;
  if (kind == "overflow") {
    std::vector<int> v(10);
    int* volatile p = v.data();
    sink = p[10];
  } else if (kind == "leak") {
    char* volatile p = new char[1000];
    p[0] = 1;
    p = nullptr;
  } else if (kind == "undefined") {
    volatile int largest = std::numeric_limits<int>::max();
    sink = largest + 1;
  } else if (kind == "race") {
    int shared = 0;
    std::thread other([&] { ++shared; });
    ++shared;
    other.join();
    sink = shared;
  }
}

TEST_CASE("what a sanitizer finds in a program that a test starts is seen") {
#if !defined(LTRAIN_SANITIZE)
  skip_test("what a sanitizer finds in a program that a test starts: this build has no sanitizer");
#else
  const std::string self = "/proc/" + std::to_string(::getpid()) + "/exe";
  const auto run = [&](const std::string& kind) {
    return std::system(
        ("LTRAIN_TEST_DEFECT=" + kind + " " + self + " '[.defective_child]' > /dev/null 2>&1").c_str());
  };
  CHECK(run("none") == 0);
  CHECK(take_sanitizer_reports() == "");
  std::vector<std::pair<std::string, std::string> > defects{{"overflow", "heap-buffer-overflow"},
                                                            {"leak", "LeakSanitizer: detected memory leaks"},
                                                            {"undefined", "signed integer overflow"}};
  if (std::string(LTRAIN_SANITIZE) == "thread") defects = {{"race", "data race"}};
  for (const auto& [kind, text] : defects) {
    INFO(kind);
    CHECK(run(kind) != 0);
    CHECK_THAT(take_sanitizer_reports(), Catch::Contains(text));
    CHECK(take_sanitizer_reports() == "");  // each once
  }
#endif
}
