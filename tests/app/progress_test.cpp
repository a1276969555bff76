// Hangs and stop requests. A rank that gets nothing done hangs, however long others wait for it; a long step,
// evaluation or load does not count. A stop request comes before an evaluation and ends a running one.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <regex>

#include "base/time_scale.h"
#include "tests/app/run_program.h"
#include "tests/support/seconds_since.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

double minutes(double seconds) { return seconds * ltrain::time_scale() / 60; }

/// A rank that rests at a point, `count` times for so long.
std::string rests(const std::string& point, const std::string& rank, int count, double seconds) {
  std::string out;
  for (int i = 1; i <= count; ++i)
    out += fmt::format("{}{}:{}:{}:sleep={}", i > 1 ? "," : "", point, rank, i,
                       static_cast<int>(1000 * seconds * ltrain::time_scale()));
  return out;
}

}  // namespace

TEST_CASE("a long step and a long evaluation are no hang, also of one rank that the others wait for") {
  TempRun t;
  // 1 s without anything done is a hang; each of these takes 3 s, in rests of 0.3 s.
  const std::string settings = fmt::format(
      "run tiny.yaml launch.distributed_timeout_minutes={} train.micro_batch_size=2 "
      "train.global_batch_size=40 train.train_steps=2 train.eval_interval=2 train.eval_steps=1",
      minutes(1));
  const std::string transport = GENERATE("shm", "gloo");
  const std::string fault = GENERATE(rests("train.batch", "1", 10, 0.3), rests("train.batch", "*", 10, 0.3),
                                     rests("eval.batch", "0", 10, 0.3));
  const auto begin = std::chrono::steady_clock::now();
  const Outcome o = t.sh(settings, "LTRAIN_TRANSPORT=" + transport + " LTRAIN_FAULT=" + fault);
  INFO(fault << "\n" << o.text);
  CHECK(o.code == 0);
  CHECK(t.metric("lm_loss").size() == 2);
  CHECK(seconds_since(begin) > 2.5 * ltrain::time_scale());  // they did rest
}

TEST_CASE("a rank that gets nothing done is found within the limit, and named, wherever it is") {
  TempRun t;
  const std::string settings =
      fmt::format("run tiny.yaml launch.distributed_timeout_minutes={} train.train_steps=1000", minutes(1));
  struct Case {
    const char *fault, *told;
    const char* without = "";  // other progress, which does not happen at the same place each time
  };
  for (const Case& c : {Case{"train.batch:1:9:hang", "rank 1 on host .* hangs, in section step 5"},
                        Case{"train.step:0:2:hang", "rank 0 on host .* hangs, in section step 2"},
                        Case{"eval.batch:1:2:hang", "rank 1 on host .* hangs, in section eval 3"},
                        Case{"collective.enter:1:50:hang", "rank 1 on host .* hangs, in section step 2,",
                             // A save in the background has collectives of its own.
                             " checkpoint.save_interval=0"}}) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome o = t.sh(settings + c.without, std::string("LTRAIN_FAULT=") + c.fault);
    INFO(c.fault << "\n" << o.text);
    CHECK(o.code == 71);
    CHECK(std::regex_search(o.text, std::regex(c.told)));
    CHECK_THAT(o.text, Contains("launch.distributed_timeout_minutes"));
    CHECK(seconds_since(begin) < 12 * ltrain::time_scale());
    std::filesystem::remove_all(t.folder() + "/run");
  }
}

TEST_CASE(
    "a stop request ends a running evaluation and comes before one that is due: the state is saved at once") {
  TempRun t;
  const bool due = GENERATE(false, true);
  // A batch of an evaluation takes 0.2 s, and an evaluation has 60.
  const std::string fault =
      rests("eval.batch", "*", 60, 0.2) +
      (due ? fmt::format(",train.step:*:3:sleep={}", int(2000 * ltrain::time_scale())) : "");
  const std::string signal = GENERATE("TERM", "USR1", "INT");
  const std::string wait_for = due ? "'\"step\":2[,}]' run/metrics.jsonl" : "'step 3/' err";
  const Outcome o = t.shell_with_jobs(fmt::format(
      "LTRAIN_FAULT={} {} run tiny.yaml train.train_steps=100000 train.eval_interval=3 train.eval_steps=60 "
      "checkpoint.save_interval=0 log.format=text train.log_interval=1 2> err & p=$!\n"
      "for i in $(seq 600); do grep -q {} 2>/dev/null && break; sleep 0.05; done\n"
      "sleep {}; date +%s.%N > asked; kill -{} $p; wait $p; echo code $?; date +%s.%N > ended",
      fault, LTRAIN_BINARY, wait_for, 0.5 * ltrain::time_scale(), signal));
  const std::string err = read_file(t.folder() + "/err");
  INFO(due << signal << o.text << err);
  CHECK_THAT(o.text, Contains("code 75"));
  CHECK_THAT(err, Contains("no evaluation at step 3: the run was asked to stop") &&
                      Contains("saved run/checkpoints/step-00000003") && Contains("stopped at step 3"));
  CHECK(t.metric("eval_loss").empty());
  const double asked = std::stod(read_file(t.folder() + "/asked")),
               ended = std::stod(read_file(t.folder() + "/ended"));
  CHECK(ended - asked < (due ? 5 : 3) * ltrain::time_scale());  // the evaluation would have taken 12 s
  const Outcome next = t.sh("run tiny.yaml train.train_steps=4 train.eval_interval=0");
  INFO(next.text);
  CHECK(next.code == 0);
  CHECK_THAT(next.text, Contains("resuming from"));
}

TEST_CASE("a signal to one rank in an evaluation stops them all at the same batch") {
  TempRun t;
  const Outcome o = t.shell(
      fmt::format("LTRAIN_FAULT={} {} run tiny.yaml train.train_steps=100000 train.eval_interval=3 "
                  "train.eval_steps=60 checkpoint.save_interval=0 train.log_interval=1 2> err & p=$!\n"
                  "for i in $(seq 600); do grep -q 'step 3/' err 2>/dev/null && break; sleep 0.05; done\n"
                  "sleep {}; kill -TERM $(pgrep -P $p | tail -n 1); wait $p; echo code $?",
                  rests("eval.batch", "*", 60, 0.2), LTRAIN_BINARY, 0.5 * ltrain::time_scale()));
  INFO(o.text << read_file(t.folder() + "/err"));
  CHECK_THAT(o.text, Contains("code 75"));
  CHECK_THAT(read_file(t.folder() + "/err"), Contains("saved run/checkpoints/step-00000003"));
}
