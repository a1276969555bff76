// telemetry.on_save: a command for each checkpoint.
#include <catch2/catch.hpp>
#include <chrono>

#include "base/json/json.h"
#include "base/time_scale.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("on_save: each checkpoint is exported while training goes on, and its lines are in the log") {
  TempRun t;
  // Rank 0 of two starts the command outside of the job: it exports and generates by itself.
  const Outcome o =
      t.sh("run tiny.yaml 'telemetry.on_save=cat > saved-$2.json; " + program() +
           " export \"$1\" exports/$2 -q && " + program() +
           " generate \"$1\" --prompt line --tokens 2 --device cpu >/dev/null && echo done with $2'");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("on_save of step 6: ended in ") && Contains("  done with 6\n"));
  CHECK(std::filesystem::exists(t.folder() + "/exports/6/config.json"));
  CHECK(std::filesystem::exists(t.folder() + "/exports/2/config.json"));  // although rotation keeps two
  const auto saved = nlohmann::json::parse(read_file(t.folder() + "/saved-6.json"));
  CHECK((saved["step"] == 6 && saved["checkpoint"] == "run/checkpoints/step-00000006" &&
         saved["name"] == "tiny"));
  CHECK(saved["eval_loss"].get<double>() > 1);
}

TEST_CASE(
    "on_save: a command that is slow is run for the newest checkpoint, and one that fails is a warning") {
  TempRun t;
  // Rotation keeps two checkpoints, and the one that the command reads.
  const Outcome reads = t.sh(
      "run tiny.yaml output_dir=reads checkpoint.save_interval=1 checkpoint.keep_latest=2 "
      "'telemetry.on_save=sleep 1; [ -e \"$1/COMMIT\" ] && echo still there'");
  INFO(reads.text);
  CHECK_THAT(reads.text,
             Contains("on_save of step 1: ended in") && Contains("rotation removed step-00000002"));
  CHECK(reads.text.find("exit code") == std::string::npos);
  const Outcome slow =
      t.sh("run tiny.yaml checkpoint.save_interval=1 'telemetry.on_save=sleep 1.5; touch of-$2'");
  INFO(slow.text);
  CHECK(slow.code == 0);
  CHECK_THAT(slow.text,
             Contains("telemetry.on_save is not run for step ") && Contains("on_save of step 6: ended in"));
  CHECK(std::filesystem::exists(t.folder() + "/of-1"));
  CHECK(std::filesystem::exists(t.folder() + "/of-6"));
  const Outcome fails = t.sh("run tiny.yaml output_dir=fails 'telemetry.on_save=echo no bucket >&2; exit 3'");
  INFO(fails.text);
  CHECK(fails.code == 0);
  CHECK_THAT(
      fails.text,
      Contains("warning: telemetry.on_save of step 6: the command ended with exit code 3\n  no bucket"));
}

TEST_CASE("on_save: a run that is asked to stop ends the command, and saves") {
  TempRun t;
  const auto begin = std::chrono::steady_clock::now();
  const Outcome o = t.shell_with_jobs(program() +
                                      " run tiny.yaml train.train_steps=100000 train.eval_interval=0 "
                                      "'telemetry.on_save=touch begun; sleep 600' "
                                      "telemetry.on_save_seconds=600 > log 2>&1 & "
                                      "for i in $(seq 600); do [ ! -e begun ] || break; sleep 0.1; done; "
                                      "kill -TERM $!; wait $!; echo code $?; cat log\n");
  INFO(o.text);
  CHECK_THAT(o.text, Contains("code 75") && Contains("the command was ended because the run stops"));
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
        60 * ltrain::time_scale());
}
