// F16: one rank of several is killed while it saves, at every point of a save. The run ends in bounded time
// and names the rank; what has its name is whole; the run that follows goes on from it and reaches what an
// undisturbed one does.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "base/error.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Steps of the checkpoints that have a name; REQUIREs that `checkpoint verify` finds each of them whole.
std::vector<int> whole_checkpoints(const TempRun& t) {
  const Outcome list = t.sh("checkpoint list run --json");
  INFO(list.text);
  REQUIRE(list.code == 0);
  std::vector<int> steps;
  const auto found = nlohmann::json::parse(list.text);
  for (const auto& c : found.at("checkpoints")) {
    CHECK(c.at("valid") == true);
    steps.push_back(c.at("step").get<int>());
  }
  std::sort(steps.begin(), steps.end());
  const Outcome verify = t.sh("checkpoint verify run");
  INFO(verify.text);
  CHECK(verify.code == (steps.empty() ? verify.code : 0));
  return steps;
}

struct Kill {
  const char* point;
  int rank;
  int saves;  ///< checkpoints that are whole afterwards, out of those at steps 2, 4 and 6
};

}  // namespace

TEST_CASE(
    "one rank killed during a save (F16): the checkpoint before stays, nothing half-made has a name, the "
    "next run goes on to the same end") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const auto golden = t.metric("lm_loss"), golden_norm = t.metric("grad_norm");
  REQUIRE(golden.size() == 6);
  std::filesystem::remove_all(t.folder() + "/run");

  // The second save, at step 4, meets the fault; after_rename and what follows it are in time for that save
  // to count.
  const Kill kill = GENERATE(Kill{"checkpoint.snapshot", 1, 1}, Kill{"checkpoint.before_open", 1, 1},
                             Kill{"checkpoint.mid_write", 0, 1}, Kill{"checkpoint.before_fsync", 1, 1},
                             Kill{"checkpoint.after_fsync", 1, 1}, Kill{"checkpoint.before_manifest", 0, 1},
                             Kill{"checkpoint.after_manifest", 0, 1}, Kill{"checkpoint.before_rename", 0, 1},
                             Kill{"checkpoint.after_rename", 0, 2});
  const bool async = GENERATE(true, false);
  const std::string fault = fmt::format("LTRAIN_FAULT={}:{}:2:kill", kill.point, kill.rank);
  const Outcome o =
      t.sh(std::string("run tiny.yaml checkpoint.async_save=") + (async ? "true" : "false"), fault);
  INFO(fault << (async ? ", in the background" : ", at once") << "\n" << o.text);
  CHECK(o.code == 71);
  CHECK(has(o.text, "rank " + std::to_string(kill.rank)));
  CHECK(has(o.text, "SIGKILL"));
  const std::vector<int> steps = whole_checkpoints(t);
  const std::vector<int> expected = kill.saves == 1 ? std::vector<int>{2} : std::vector<int>{2, 4};
  CHECK(steps == expected);

  const Outcome next = t.sh("run tiny.yaml");
  INFO(next.text);
  CHECK(next.code == 0);
  CHECK(has(next.text, "resuming from"));
  CHECK(has(next.text, "step-0000000" + std::to_string(expected.back())));
  CHECK(t.metric("lm_loss") == golden);  // to the bit
  CHECK(t.metric("grad_norm") == golden_norm);
  CHECK(whole_checkpoints(t) == std::vector<int>{4, 6});
  for (const auto& e : std::filesystem::directory_iterator(t.folder() + "/run/checkpoints"))
    CHECK(e.path().string().find(".tmp-") == std::string::npos);
}

TEST_CASE("a save that fails on one rank is committed on none, and training goes on to the next one") {
  TempRun t;
  const Outcome o = t.sh("run tiny.yaml", "LTRAIN_FAULT=checkpoint.before_open:1:2:error");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(has(o.text, "WARNING: the checkpoint of step 4 was not saved"));
  CHECK(has(o.text, "rank 1"));
  CHECK(whole_checkpoints(t) == std::vector<int>{2, 6});
  CHECK(t.metric("lm_loss").size() == 6);
}

TEST_CASE("the last save that fails is the run's failure") {
  TempRun t;
  const Outcome o = t.sh("run tiny.yaml", "LTRAIN_FAULT=checkpoint.before_open:1:3:error");
  INFO(o.text);
  CHECK(o.code == 73);
  CHECK(has(o.text, "the last checkpoint could not be saved"));
  CHECK(whole_checkpoints(t) == std::vector<int>{2, 4});
}
