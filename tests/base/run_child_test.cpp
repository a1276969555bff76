// Programs that are run for what they say, within a time.
#include "base/run_child.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

using namespace ltrain;
using How = ChildEnd::How;

namespace {

ChildEnd sh(const std::string& script, double seconds = 30) {
  return run_child({"/bin/sh", "-c", script, "sh", "an argument"}, seconds);
}

}  // namespace

TEST_CASE("a child's exit code and what it says are told") {
  const ChildEnd yes = sh("echo out; echo err >&2; echo \"$1\"");
  CHECK(yes.how == How::exited);
  CHECK(yes.number == 0);
  CHECK(yes.output == "out\nerr\nan argument\n");
  const ChildEnd no = sh("exit 3");
  CHECK(no.number == 3);
  CHECK(no.text == "ended with exit code 3");
  CHECK(sh("head -c 100000 /dev/zero").output.size() == 4096);
}

TEST_CASE("a child that dies by a signal is told by its name") {
  const ChildEnd e = sh("kill -SEGV $$");
  CHECK(e.how == How::signalled);
  CHECK(e.number == SIGSEGV);
  CHECK_THAT(e.text, Catch::StartsWith("was ended by signal 11 ("));
}

TEST_CASE("a child that hangs is ended with all that it has started, when its time is over") {
  const auto begin = std::chrono::steady_clock::now();
  const ChildEnd e = sh("echo $$; sleep 100 & sleep 100", 0.3);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(e.how == How::too_long);
  CHECK(e.text == "did not end in 0.3 s");
  CHECK(seconds > 0.25);
  CHECK(seconds < 20);
  const pid_t group = std::stoi(e.output);
  bool gone = false;
  for (int i = 0; i < 400 && !gone; ++i) {
    gone = ::kill(-group, 0) != 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(gone);
  CHECK(sh("trap '' TERM; exec sleep 100 >/dev/null 2>&1", 0.2).how ==
        How::too_long);  // its output has ended
}

TEST_CASE("a child that cannot be started is told with the reason") {
  const ChildEnd e = run_child({"/no/such/program"}, 1);
  CHECK(e.how == How::not_started);
  CHECK(e.text == "could not be started: No such file or directory");
}
