// ltrain replay: the steps come again to the bit, a changed record is found, a NaN is told from a fault.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "base/json/json.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Changes the last digits of a value in a line of metrics.jsonl.
void change_loss(const std::string& run, int64_t step, const std::string& key) {
  std::string out;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    auto j = nlohmann::json::parse(line);
    if (j["step"] == step && j.contains(key)) j[key] = j[key].get<double>() * (1 + 1e-15);
    out += j.dump() + "\n";
  }
  std::ofstream(run + "/metrics.jsonl") << out;
}

}  // namespace

TEST_CASE("a replay of a run's steps has the recorded bits, and leaves the run as it is") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml checkpoint.keep_latest=0").code == 0);
  const std::string before = t.shell("ls -R run && cat run/metrics.jsonl").text;
  Outcome o = t.sh("replay run");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text,
             Contains("replay: steps 5 to 6 of run, from run/checkpoints/step-00000004, in run/replay") &&
                 Contains("replay of steps 5 to 6: 2 steps compared\nAll have the same bits"));
  const std::vector<std::string> norms = t.metric("grad_norm");
  CHECK(t.metric("grad_norm", "run/replay") == std::vector(norms.end() - 2, norms.end()));
  CHECK_FALSE(std::filesystem::exists(t.folder() + "/run/replay/checkpoints/step-00000006"));

  o = t.sh("replay run --step 3 --from run/checkpoints/step-00000002 --json 2>/dev/null");
  INFO(o.text);
  CHECK(o.code == 0);
  const auto said = nlohmann::json::parse(o.text);  // nothing else is on stdout
  CHECK(said.at("result") == "repeats");
  CHECK(said.at("from_step") == 2);
  CHECK(said.at("compared_steps") == 1);
  std::filesystem::remove_all(t.folder() + "/run/replay");
  CHECK(t.shell("ls -R run && cat run/metrics.jsonl").text == before);
}

TEST_CASE("a replay finds the step whose recorded value has other bits") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml launch.max_restarts=2 launch.restart_wait_seconds=1 launch.min_nodes=1 "
               "checkpoint.keep_every=3 checkpoint.keep_best=true checkpoint.save_interval=3 "
               "telemetry.on_end=true")
              .code == 0);
  const std::string key = GENERATE("lm_loss", "grad_norm");
  change_loss(t.folder() + "/run", 5, key);
  const Outcome o = t.sh("replay run");
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("step 5: loss ") && Contains("Same checkpoint, data and settings, other bits"));
  CHECK_THAT(t.sh("replay run --step 4").text, Contains("All have the same bits"));
}

TEST_CASE("a replay tells a NaN that comes back from a fault that does not") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml", "LTRAIN_FAULT=train.loss:0:4:nan").code == 76);
  Outcome o = t.sh("replay run");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text,
             Contains("step 4 was NaN or infinite, and is finite now: loss ") && Contains("1 step compared"));
  o = t.sh("replay run",
           "LTRAIN_FAULT=train.loss:0:2:nan");  // the second step after the checkpoint of step 2
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("step 4 is NaN or infinite again"));
  o = t.sh("replay run --step 3", "LTRAIN_FAULT=train.loss:0:1:nan");
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("step 3 is NaN or infinite now, and was not in the run"));
}

TEST_CASE("a replay refuses a folder without a run, a step beyond it, and a later checkpoint") {
  TempRun t;
  Outcome o = t.sh("replay text-train.bin");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("has no recipe.yaml; expected the output_dir of a run"));
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  o = t.sh("replay run --step 7");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("--step 7: the run has got to step 6; nearest valid value: 6"));
  o = t.sh("replay run --step 3 --from run/checkpoints/step-00000004");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("is of step 4, and step 3 is to be repeated; expected an earlier checkpoint"));
}
