// A run names ranks that hold up the others, with the reason; a rank that only waits for them is not named.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <regex>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kFourRanks =
    "run tiny.yaml parallel.data=4 train.micro_batch_size=1 train.train_steps=21 train.eval_interval=0 "
    "checkpoint.save_interval=0 checkpoint.save_at_end=false "
    "telemetry.prometheus=run.prom ";

/// A rank is named, and for 20 ms a step at least: beside other work on the machine a rank of this tiny job
/// loses some ms of its cores, and is rightly named for them.
bool holds_up(const std::string& text, int rank) {
  const std::regex line(fmt::format("straggler: rank {} on host [^:]*: ([0-9.]+) ms", rank));
  for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at)
    if (std::stod((*at)[1]) >= 20) return true;
  return false;
}

}  // namespace

TEST_CASE(
    "a rank that is slow is named with the reason in log and metrics, and the ranks that wait are not") {
  struct Case {
    std::string fault, reason, text;
    int rank;
  };
  const auto c = GENERATE(
      Case{.fault = "data.read:2:*:sleep=60", .reason = "data", .text = "ms for its data", .rank = 2},
      Case{.fault = "train.batch:1:*:sleep=60",
           .reason = "stalled",
           .text = "its process does not run",
           .rank = 1});
  TempRun t;
  const Outcome o = t.sh(kFourRanks, "LTRAIN_STRAGGLER_STEPS=10 LTRAIN_FAULT=" + c.fault);
  INFO(c.fault << "\n" << o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains(fmt::format("straggler: rank {} on host ", c.rank)) && Contains(c.text));
  for (int rank = 0; rank < 4; ++rank)
    if (rank != c.rank) CHECK_THAT(o.text, !Contains(fmt::format("straggler: rank {} ", rank)));
  CHECK(t.metric("straggler") ==
        std::vector<std::string>{fmt::format("11:{}", c.rank), fmt::format("21:{}", c.rank)});
  CHECK_THAT(
      read_file(t.folder() + "/run.prom"),
      Contains(fmt::format("ltrain_straggler_slowdown_ratio{{run=\"tiny\",rank=\"{}\",host=\"", c.rank)) &&
          Contains(fmt::format("reason=\"{}\"}}", c.reason)));
  CHECK(t.sh("report run").code == 0);
}

TEST_CASE("a slow rank is named under tensor, pipeline and ZeRO-3 layouts, and no rank is without one") {
  const std::string layout =
      GENERATE("parallel.data=2 parallel.tensor=2", "parallel.data=4 parallel.zero_stage=3",
               "parallel.data=1 parallel.pipeline=4 model.num_hidden_layers=4");
  const bool slow = GENERATE(false, true);
  TempRun t;
  const Outcome o =
      t.sh("run tiny.yaml " + layout +
               " train.micro_batch_size=1 train.train_steps=21 train.eval_interval=0 "
               "checkpoint.save_interval=0 checkpoint.save_at_end=false",
           std::string("LTRAIN_STRAGGLER_STEPS=10 ") + (slow ? "LTRAIN_FAULT=train.batch:1:*:sleep=30" : ""));
  INFO(layout << "\n" << o.text);
  CHECK(o.code == 0);
  CHECK(holds_up(o.text, 1) == slow);
  for (const int rank : {0, 2, 3}) CHECK_FALSE(holds_up(o.text, rank));
}

TEST_CASE("a rank that is stopped for short times again and again is named, and no more once it runs again") {
  TempRun t;
  // Rank 1 is stopped for 0.1 s of each 0.15 s until step 100; the others wait for it.
  const Outcome o =
      t.shell_with_jobs("LTRAIN_STRAGGLER_STEPS=30 LTRAIN_FAULT=train.batch:*:*:sleep=5 " + program() + " " +
                        kFourRanks + "train.train_steps=220 train.log_interval=1 2> err & p=$!\n" +
                        "for i in $(seq 600); do grep -q '^step 2/' err && break; sleep 0.02; done\n"
                        "r=$(for c in $(pgrep -P $p); do tr '\\0' '\\n' < /proc/$c/environ | grep -q "
                        "'^LTRAIN_RANK=1$' && echo $c; done)\n"
                        "while kill -0 $r 2>/dev/null; do\n"
                        "  grep -q '^step 100/' err && break\n"
                        "  kill -STOP $r; sleep 0.1; kill -CONT $r; sleep 0.05\n"
                        "done\nwait $p; code=$?; cat err; exit $code\n");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("straggler: rank 1 on host ") && Contains("is as fast as the others again"));
  for (const int rank : {0, 2, 3}) CHECK_THAT(o.text, !Contains(fmt::format("straggler: rank {} ", rank)));
}

TEST_CASE("a run in which all ranks are as slow names none, and one with LTRAIN_STRAGGLER_STEPS=0 neither") {
  const auto [fault, more] = GENERATE(std::pair("train.batch:*:*:sleep=30", "LTRAIN_STRAGGLER_STEPS=10 "),
                                      std::pair("train.batch:1:*:sleep=30", "LTRAIN_STRAGGLER_STEPS=0 "));
  TempRun t;
  const Outcome o = t.sh(kFourRanks, std::string(more) + "LTRAIN_FAULT=" + fault);
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, !Contains("straggler:"));
  CHECK(t.metric("straggler").empty());
}

TEST_CASE("ranks are compared while checkpoints are saved in the background") {
  TempRun t;
  const Outcome o = t.sh(
      "run tiny.yaml train.train_steps=150 train.eval_interval=0 checkpoint.save_interval=1 "
      "checkpoint.keep_latest=2",
      "LTRAIN_STRAGGLER_STEPS=1");
  INFO(o.text);
  CHECK(o.code == 0);
}
