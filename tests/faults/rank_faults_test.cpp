// Ranks that die, stop, hang or disagree: the run ends in bounded time, says who and where, and leaves
// nothing.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "parallel/comm/socket.h"
#include "tests/faults/run_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

RunResult run_with_fault(const std::string& fault, int ranks, std::vector<std::string> more = {},
                         Pairs variables = {}) {
  variables.emplace_back("LTRAIN_FAULT", fault);
  Program p(selftest(ranks, 2000, std::move(more)), variables);
  RunResult r = p.wait();
  INFO(r.error);
  CHECK(marked_processes(p.mark()).empty());  // nothing is left
  return r;
}

}  // namespace

TEST_CASE("no fault: the run ends well, within its time, and says nothing on stderr") {
  Program p(selftest(4, 5));
  const RunResult r = p.wait();
  INFO(r.error);
  CHECK(r.code == 0);
  CHECK(r.error.empty());
  CHECK_THAT(r.output, Contains("selftest: 4 ranks (ltrain), 5 steps"));
  CHECK(marked_processes(p.mark()).empty());
  CHECK(r.seconds < 5 * time_scale());
}

TEST_CASE("a killed rank (F1)") {
  for (const auto& [rank, transport] : std::vector<std::pair<int, const char*>>{
           {0, "shm"}, {1, "shm"}, {3, "shm"}, {0, "gloo"}, {1, "gloo"}, {3, "gloo"}}) {
    const RunResult r = run_with_fault("selftest.step:" + std::to_string(rank) + ":40:kill", 4, {},
                                       {{"LTRAIN_TRANSPORT", transport}});
    INFO(transport << "\n" << r.error);
    CHECK(r.code == 71);
    CHECK(r.seconds < 10 * time_scale());
    const std::string end = last_lines(r.error, 20);
    CHECK_THAT(end, Contains("rank " + std::to_string(rank) + " on host " + host_name()));
    CHECK_THAT(end, Contains("signal 9 (SIGKILL)") && Contains("all_reduce #") && Contains("exit code 71"));
  }
}

TEST_CASE("an abort is the cause, the peers' lost connections are its consequence (F4)") {
  const RunResult r = run_with_fault("selftest.step:2:20:abort", 4);
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK(r.seconds < 10 * time_scale());
  CHECK_THAT(r.error, Contains("run failed: rank 2") && Contains("signal 6 (SIGABRT)"));
  CHECK_THAT(r.error, Contains("consequence on ranks 0, 1, 3"));
  CHECK(r.error.find("SIGABRT") < r.error.find("consequence"));
}

TEST_CASE("an exception is reported with its own exit code and text") {
  const RunResult r = run_with_fault("selftest.step:1:20:error", 3);
  INFO(r.error);
  CHECK(r.code == 70);
  CHECK_THAT(r.error, Contains("run failed: rank 1") && Contains("fault injected at selftest.step"));
}

TEST_CASE("a rank that exits without a goodbye") {
  const RunResult r = run_with_fault("selftest.step:1:20:exit=5", 3);
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK_THAT(r.error, Contains("run failed: rank 1") && Contains("exit code 5"));
}

TEST_CASE("a stopped rank (F2)") {
  const RunResult r = run_with_fault("selftest.step:2:20:stop", 4);
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK(r.seconds < 15 * time_scale());
  CHECK_THAT(r.error, Contains("run failed: rank 2") && Contains("no heartbeat") && Contains("SIGSTOP"));
}

TEST_CASE("a rank that is stopped for a while and goes on does not end the run") {
  Program p(selftest(2, 400));
  REQUIRE(started(p, 2));
  const int victim = p.ranks()[0];
  ::kill(victim, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ::kill(victim, SIGCONT);
  const RunResult r = p.wait();
  INFO(r.error);
  CHECK(r.code == 0);
}

TEST_CASE("a rank that hangs before a collective (F8)") {
  const std::string dir = "fault-test-" + std::to_string(::getpid());
  const RunResult r = run_with_fault("selftest.step:3:20:hang", 4, {"--deadline", "2", "--run-dir", dir});
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK(r.seconds < 15 * time_scale());
  CHECK_THAT(r.error, Contains("run failed: rank 3 on host") && Contains("hangs"));
  CHECK_THAT(r.error, Contains("rank 3 last completed #38, never entered #39 (all_reduce #39"));
  CHECK_THAT(r.error, Contains(dir + "/logs/rank-00003.log"));
  std::ifstream log(dir + "/logs/rank-00003.log");
  std::stringstream text;
  text << log.rdbuf();
  CHECK_THAT(text.str(), Contains("does not come back from"));
  for (int i = 0; i < 4; ++i)
    CHECK(std::filesystem::exists(dir + "/logs/rank-0000" + std::to_string(i) + ".log"));
  std::filesystem::remove_all(dir);
}

TEST_CASE("a rank leaves out a collective, or sends another size (F9)") {
  // Step 20 makes collectives 39 (of 1 element) and 40 (of 1024).
  for (const char* transport : {"shm", "gloo"})
    for (const auto& [fault, call] :
         Pairs{{"39:skip", "#39 of 1024 f32"}, {"40:corrupt", "#40 of 1025 f32"}}) {
      const RunResult r =
          run_with_fault("collective.enter:1:" + fault, 3, {}, {{"LTRAIN_TRANSPORT", transport}});
      INFO(r.error);
      CHECK(r.code == 70);
      CHECK(r.seconds < 10 * time_scale());
      CHECK_THAT(r.error, Contains("make different calls") && Contains("rank 1 entered all_reduce " + call) &&
                              Contains("the same on ranks"));
    }
}

TEST_CASE("a rank that never joins (F42)") {
  const RunResult r = run_with_fault("launch.join:2:1:hang", 4, {}, {{"LTRAIN_JOIN_TIMEOUT", scaled(1)}});
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK(r.seconds < 8 * time_scale());
  CHECK_THAT(r.error,
             Contains("rank 2 of 4 did not join within " + scaled(1) + " s") && Contains("joined: rank 0"));
}

TEST_CASE("a rank that dies before it joins") {
  const RunResult r = run_with_fault("launch.join:1:1:kill", 3);
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK(r.seconds < 8 * time_scale());
  CHECK_THAT(r.error, Contains("run failed: rank 1") && Contains("before joining"));
}

TEST_CASE("a killed launcher takes its ranks with it") {
  Program p(selftest(3));
  REQUIRE(wait_until(5 * time_scale(), [&] { return p.ranks().size() == 3; }));
  ::kill(p.pid(), SIGKILL);
  CHECK(wait_until(3 * time_scale(), [&] { return marked_processes(p.mark()).empty(); }));
}

TEST_CASE("a wrong fault specification is a usage error that lists what there is") {
  Program p(selftest(2), {{"LTRAIN_FAULT", "selftest.step:1:1:explode"}});
  const RunResult r = p.wait();
  CHECK(r.code == 64);
  CHECK_THAT(r.error, Contains("explode") && Contains("kill, stop, abort"));
}
