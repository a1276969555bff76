// Restarts by the launcher, alone and beside a thread that blocks no signals; and the flight recorder.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <sstream>

#include "parallel/comm/socket.h"
#include "tests/faults/run_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

Pairs with_or_without_unmasked() {
  return GENERATE(false, true) ? Pairs{{"LD_PRELOAD", LTRAIN_UNMASKED_THREAD}} : Pairs{};
}

RunResult end_of(Program& p) {
  const RunResult r = p.wait();
  CHECK(marked_processes(p.mark()).empty());  // nothing is left
  return r;
}

int times(const std::string& text, const std::string& word) {
  int n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A folder under the working directory, as those of the other tests of faults.
struct Folder {
  const std::string path = "restart-test-" + std::to_string(::getpid());
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE(
    "restarts of the launcher: a rank killed from outside is started again, whichever thread hears of it") {
  const Pairs variables = with_or_without_unmasked();
  Program p(selftest(3, 300, {"--max-restarts", "3", "--restart-wait", "0.1"}), variables);
  REQUIRE(started(p, 3));
  const std::vector<int> first = p.ranks();
  ::kill(first[1], SIGKILL);
  REQUIRE(wait_until(20 * time_scale(), [&] {
    const std::vector<int> now = p.ranks();
    return now.size() == 3 && std::none_of(now.begin(), now.end(), [&](int pid) {
             return std::find(first.begin(), first.end(), pid) != first.end();
           });
  }));
  const RunResult r = end_of(p);
  INFO(r.error);
  CHECK(r.code == 0);
  CHECK_THAT(r.error, Contains("signal 9 (SIGKILL)") && Contains("ltrain: restart 1 of 3 in 0.1 s"));
  CHECK(times(r.error, "ltrain: restart") == 1);
  CHECK_THAT(r.output, Contains("300 steps"));
}

TEST_CASE("restarts of the launcher: a fault that comes back ends the job with 76") {
  for (auto variables : {Pairs{}, Pairs{{"LD_PRELOAD", LTRAIN_UNMASKED_THREAD}}}) {
    variables.emplace_back("LTRAIN_FAULT", "selftest.step:1:20:abort");
    Program p(selftest(2, 300, {"--max-restarts", "9", "--restart-wait", "0.1"}), variables);
    const RunResult r = end_of(p);
    INFO(r.error);
    CHECK(r.code == 76);
    CHECK(times(r.error, "ltrain: restart") == 2);
    CHECK_THAT(r.error, Contains("signal 6 (SIGABRT)") && Contains("exit code 76"));
  }
}

TEST_CASE("restarts of the launcher: a signal while it waits ends the job at once") {
  Pairs variables = with_or_without_unmasked();
  variables.emplace_back("LTRAIN_FAULT", "selftest.step:1:100:kill");
  for (const int signal : {SIGTERM, SIGINT}) {
    Program p(selftest(2, 300, {"--max-restarts", "9", "--restart-wait", "100"}), variables);
    REQUIRE(started(p, 2));
    REQUIRE(wait_until(20 * time_scale(), [&] { return p.ranks().empty(); }));
    std::this_thread::sleep_for(std::chrono::duration<double>(0.7 * time_scale()));
    const auto before = std::chrono::steady_clock::now();
    ::kill(p.pid(), SIGUSR2);  // asks for a record, of nobody here
    ::kill(p.pid(), signal);
    const RunResult r = end_of(p);
    INFO(r.error);
    CHECK(r.code == 75);
    CHECK_THAT(r.error, Contains("restart 1 of 9 in 100 s") && Contains("before the restart"));
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() <
          2 * time_scale());
  }
}

TEST_CASE("restarts of the launcher: a signal of the user is no reason to start again") {
  Program p(selftest(2, 2000, {"--max-restarts", "9", "--restart-wait", "0.1"}), with_or_without_unmasked());
  REQUIRE(started(p, 2));
  ::kill(p.pid(), SIGTERM);
  const RunResult r = end_of(p);
  INFO(r.error);
  CHECK(r.code == 75);
  CHECK(times(r.error, "ltrain: restart") == 0);
}

TEST_CASE("flight recorder: a hang names the call, who waits in it since when, and who has not entered it") {
  const Folder folder;
  Program p(selftest(3, 2000, {"--deadline", "2", "--run-dir", folder.path}),
            {{"LTRAIN_FAULT", "selftest.step:2:20:hang"}});
  const RunResult r = end_of(p);
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK_THAT(
      r.error,
      Contains("last calls: group world[0-2], all_reduce #39 of 1 f32 (max): ranks 0, 1 wait since ") &&
          Contains("not entered by rank 2, whose last call there, all_reduce #38 of 1024 f32, ended at "));
  for (int rank = 0; rank < 3; ++rank)
    CHECK((file_text(fmt::format("{}/flight/rank-{:05d}.json", folder.path, rank))
               .find("\"waiting_seconds\"") != std::string::npos) == (rank < 2));
}

TEST_CASE("flight recorder: SIGUSR2 to the launcher writes the files of all ranks, and the job goes on") {
  const Folder folder;
  Program p(selftest(2, 600, {"--run-dir", folder.path}), with_or_without_unmasked());
  REQUIRE(started(p, 2));
  std::this_thread::sleep_for(std::chrono::duration<double>(0.5 * time_scale()));
  ::kill(p.pid(), SIGUSR2);
  CHECK(wait_until(5 * time_scale(), [&] {
    return std::filesystem::exists(folder.path + "/flight/rank-00000.json") &&
           std::filesystem::exists(folder.path + "/flight/rank-00001.json");
  }));
  const RunResult r = end_of(p);
  INFO(r.error);
  CHECK(r.code == 0);
  CHECK_THAT(r.error, Contains("SIGUSR2: each rank writes its last calls to " + folder.path + "/flight"));
  CHECK_THAT(file_text(folder.path + "/flight/rank-00001.json"),
             Contains("\"reason\": \"SIGUSR2\"") && Contains("\"call\": \"all_reduce #"));
}
