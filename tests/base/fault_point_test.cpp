#include "base/fault_point.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>

#include "base/error.h"

using namespace ltrain;

namespace {
/// How a child that runs `f` ends: exit code, or 1000 + signal.
int in_child(const std::function<void()>& f) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
void reach(int times) {
  for (int i = 0; i < times; ++i) LT_FAULT_POINT("selftest.step");
}
}  // namespace

TEST_CASE("fault points do what was asked for, where and when") {
  set_fault_rank(1);
  CHECK_FALSE(faults_armed);
  CHECK(LT_FAULT_POINT("selftest.step") == FaultAction::none);

  arm_faults("selftest.step:1:3:kill");
  CHECK(in_child([] { reach(2); }) == 0);
  CHECK(in_child([] { reach(3); }) == 1009);
  arm_faults("selftest.step:0:1:kill");
  CHECK(in_child([] { reach(3); }) == 0);  // another rank's
  arm_faults("selftest.step:*:1:exit=7");
  CHECK(in_child([] { reach(1); }) == 7);
  arm_faults("selftest.step:1:1:abort");
  CHECK(in_child([] { reach(1); }) == 1006);

  arm_faults("selftest.step:1:2:nan,collective.enter:1:1:skip,launch.finish:1:1:error");
  CHECK(LT_FAULT_POINT("selftest.step") == FaultAction::none);
  CHECK(LT_FAULT_POINT("selftest.step") == FaultAction::nan);
  CHECK(LT_FAULT_POINT("selftest.step") == FaultAction::none);
  CHECK(LT_FAULT_POINT("collective.enter") == FaultAction::skip);
  CHECK_THROWS_AS(LT_FAULT_POINT("launch.finish"), Error);
  arm_faults("");
  CHECK_FALSE(faults_armed);
  set_fault_rank(0);
}

TEST_CASE("fault specifications that are wrong are refused, with what there is") {
  for (const char* bad :
       {"x", "selftest.step:1:1", "nowhere:1:1:kill", "selftest.step:x:1:kill", "selftest.step:1:0:kill",
        "selftest.step:1:1:explode", "selftest.step:1:1:sleep=x", "selftest.step:1:1:kill:2", ","})
    CHECK_THROWS_WITH(arm_faults(bad), Catch::Contains("LTRAIN_FAULT"));
  CHECK_THROWS_WITH(arm_faults("nowhere:1:1:kill"), Catch::Contains("collective.enter"));
  arm_faults("");
}
