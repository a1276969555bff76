// `ltrain data stages`: a run that goes on takes other data.stages.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kStages = "'data.stages=[{from_step: 40, train: [{path: late.txt}, {path: text-val}]}]' ";

/// A run of 50 steps.
std::string fifty_steps(const std::string& name, const std::string& more = "") {
  return "run tiny.yaml data.eval=[] train.eval_interval=0 data.cache=cache train.train_steps=50 "
         "checkpoint.save_interval=10 output_dir=" +
         name + " " + more;
}

/// Starts a run of which every step takes at least 50 ms, does `meanwhile` after its third step, and waits
/// for the run. Prints "codes A B" of both, and the log.
Outcome run_with(const TempRun& t, const std::string& the_run, const std::string& name,
                 const std::string& meanwhile) {
  return t.shell("LTRAIN_FAULT='train.step:0:*:sleep=50' " + program() + " " + the_run + " > " + name +
                 ".log 2>&1 & pid=$!; for i in $(seq 600); do grep -q 'step 3/' " + name +
                 ".log && break; sleep 0.05; done; " + meanwhile +
                 "; b=$?; wait $pid; echo codes $? $b; cat " + name + ".log");
}

void write_late(const TempRun& t) {
  std::ofstream out(t.folder() + "/late.txt");
  for (int i = 0; i < 500; ++i) out << "a later text, line " << i * 7 << "\n";
}

}  // namespace

TEST_CASE("data stages: a run takes other stages while it goes on, and a restart goes on with them") {
  TempRun t;
  write_late(t);
  const Outcome from_start = t.sh(fifty_steps("a", kStages));
  INFO(from_start.text);
  REQUIRE(from_start.code == 0);
  fs::remove_all(t.folder() + "/cache");
  const Outcome changed =
      run_with(t, fifty_steps("b", "data.ledger=true --steps=45"), "b",
               program() + " data stages b tiny.yaml train.train_steps=50 data.cache=cache " + kStages);
  INFO(changed.text);
  CHECK_THAT(changed.text, Contains("codes 0 0") && Contains("tokenising late.txt") &&
                               Contains("data.stages have changed: from step 40: late.txt, text-val") &&
                               Contains("b/stages-next.json: from step 40: late.txt, text-val"));
  CHECK(fs::exists(t.folder() + "/b/stages.json"));
  CHECK(!fs::exists(t.folder() + "/b/stages-next.json"));
  const Outcome resumed = t.sh(fifty_steps("b", "data.ledger=true"));
  INFO(resumed.text);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.text, Contains("data.stages are those of b/stages.json"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
  const Outcome ledger = t.sh("data ledger b");
  INFO(ledger.text);
  CHECK(ledger.code == 0);
  // The recipe has the stages itself: nothing to say.
  CHECK_THAT(t.sh(fifty_steps("b", kStages + "data.ledger=true train.train_steps=51")).text,
             !Contains("stages.json"));
  REQUIRE(t.sh(fifty_steps("plain")).code == 0);
  CHECK(t.metric("lm_loss", "plain")[38] == t.metric("lm_loss", "b")[38]);
  CHECK(t.metric("lm_loss", "plain")[39] != t.metric("lm_loss", "b")[39]);
}

TEST_CASE("data stages: a launcher's restart goes on with the stages that were taken") {
  TempRun t;
  write_late(t);
  REQUIRE(t.sh(fifty_steps("a", kStages)).code == 0);
  const Outcome lost = t.shell(
      "LTRAIN_FAULT='train.step:0:*:sleep=50,train.step:1:44:kill' " + program() + " " +
      fifty_steps("b", "launch.max_restarts=1 launch.restart_wait_seconds=0.1") +
      " > b.log 2>&1 & pid=$!; for i in $(seq 600); do grep -q 'step 3/' b.log && break; sleep 0.05; done; " +
      program() + " data stages b tiny.yaml train.train_steps=50 data.cache=cache " + kStages +
      "; wait $pid; echo code $?; cat b.log");
  INFO(lost.text);
  CHECK_THAT(lost.text, Contains("code 0") && Contains("restart 1 of 1: goes on from step 40"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
}

TEST_CASE("data stages: a mix that has begun stays, by the command and by the run") {
  TempRun t;
  write_late(t);
  const std::string early = "'data.stages=[{from_step: 2, train: [{path: text-val}]}]'";
  const Outcome refused = run_with(
      t, fifty_steps("a"), "a",
      program() + " data stages a tiny.yaml train.train_steps=50 " + early + "; echo early $?; echo '" +
          "[{\"from_step\": 2, \"train\": [{\"path\": \"text-val\"}]}]' > a/stages-next.json");
  INFO(refused.text);
  CHECK_THAT(refused.text, Contains("early 64") && Contains("a mix that has begun cannot change") &&
                               Contains("Let the change begin at step") && Contains("codes 0 0") &&
                               Contains("warning: data.stages stay as they are: rank 0"));
  CHECK(fs::exists(t.folder() + "/a/stages-refused.json"));
  REQUIRE(t.sh(fifty_steps("plain")).code == 0);
  CHECK(t.metric("lm_loss", "a") == t.metric("lm_loss", "plain"));
  CHECK_THAT(t.sh("data stages nowhere tiny.yaml").text,
             Contains("nowhere: expected the output_dir of a run"));
}
