// launch.max_restarts: a run that loses a rank goes on by itself, with the losses of an unbroken run.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "base/time_scale.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kJob =
    "run tiny.yaml train.train_steps=10 checkpoint.save_interval=4 checkpoint.async_save=false ";
const std::string kRestarts = "launch.max_restarts=2 launch.restart_wait_seconds=0.1 ";

/// Losses, norms and held-out losses of the run, to the bit.
std::vector<std::vector<std::string>> numbers(const TempRun& t) {
  return {t.metric("lm_loss"), t.metric("grad_norm"), t.metric("eval_loss"), t.metric("consumed_tokens")};
}

int count(const std::string& text, const std::string& word) {
  int n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a run that loses a rank starts again by itself and ends with the numbers of an unbroken run") {
  TempRun whole, t;
  REQUIRE(whole.sh(kJob).code == 0);
  struct Case {
    std::string fault, told, more;
  };
  // The seventh step of a rank: the second attempt begins after step 4 and has only six.
  const auto c = GENERATE(
      Case{"train.step:1:7:kill", "rank 1 on host .* was killed by signal 9", ""},
      Case{"train.step:0:7:kill", "rank 0 on host .* was killed by signal 9", ""},
      Case{"train.step:1:7:abort", "rank 1 on host .* was killed by signal 6", ""},
      Case{"train.step:1:7:stop", "rank 1 on host .* sent no heartbeat", ""},
      Case{"train.step:1:7:hang", "rank 1 on host .* hangs",
           fmt::format("launch.distributed_timeout_minutes={} ", 2 * ltrain::time_scale() / 60)},
      Case{"train.step:1:7:kill", "rank 1 on host .* was killed by signal 9", "checkpoint.resume=never "});
  const Outcome o = t.sh(kJob + kRestarts + c.more, "LTRAIN_FAULT=" + c.fault);
  INFO(c.fault << "\n" << o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("ltrain: restart 1 of 2 in 0.1 s"));
  CHECK_THAT(o.text, Catch::Matches("[\\s\\S]*restart 1 of 2: goes on from step 4, 2 steps are lost; " +
                                    c.told + "[\\s\\S]*"));
  CHECK(count(o.text, "ltrain: restart") == 1);
  CHECK(numbers(t) == numbers(whole));
  CHECK(t.metric("restart") == std::vector<std::string>{"4:1"});
  CHECK(t.metric("max_restarts") == std::vector<std::string>{"4:2"});
  CHECK(t.metric("lost_steps") == std::vector<std::string>{"4:2"});
  CHECK(t.sh("report run").code == 0);
  REQUIRE(t.metric("reason").size() == 1);
  CHECK_THAT(t.metric("reason")[0], Catch::Matches("4:\"" + c.told + ".*"));
}

TEST_CASE("after a restart --steps counts from the first start") {
  TempRun whole, t;
  REQUIRE(whole.sh(kJob + "--steps 7").code == 0);
  const Outcome o = t.sh(kJob + kRestarts + "--steps 7", "LTRAIN_FAULT=train.step:1:6:kill");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("goes on from step 4, 1 step is lost"));
  CHECK(numbers(t) == numbers(whole));
  const Outcome more = t.sh(kJob);
  CHECK(more.code == 0);
  CHECK_THAT(more.text, Contains("steps 8 to 10"));
}

TEST_CASE("a fault that comes back at the same step ends the run with 76 after two restarts") {
  TempRun t;
  const Outcome o = t.sh(
      "run tiny.yaml checkpoint.save_interval=100 launch.max_restarts=9 "
      "launch.restart_wait_seconds=0.1",
      "LTRAIN_FAULT=train.step:1:3:kill");
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK(count(o.text, "ltrain: restart") == 2);
  CHECK_THAT(o.text, Contains("restart 2 of 9 in 0.2 s") &&
                         Contains("no restart: two restarts in a row from step 0 ended the same way") &&
                         Contains("a rank was killed by signal 9 (SIGKILL)") && Contains("exit code 76"));
}

TEST_CASE("a run ends with its own exit code when its restarts are made, or when a restart is of no use") {
  TempRun t;
  const std::string job = "run tiny.yaml checkpoint.save_interval=100 launch.restart_wait_seconds=0.1 ";
  const Outcome made = t.sh(job + "launch.max_restarts=1", "LTRAIN_FAULT=train.step:1:3:kill");
  INFO(made.text);
  CHECK(made.code == 71);
  CHECK(count(made.text, "ltrain: restart") == 1);
  CHECK_THAT(made.text, Contains("no restart: launch.max_restarts = 1 is made"));
  for (const auto& [fault, code] :
       {std::pair("train.loss:*:3:nan", 76), std::pair("train.step:1:3:error", 70)}) {
    const Outcome o = t.sh(job + "launch.max_restarts=5", std::string("LTRAIN_FAULT=") + fault);
    INFO(o.text);
    CHECK(o.code == code);
    CHECK(count(o.text, "restart 1 of") == 0);
  }
}

TEST_CASE("a signal during the wait before a restart ends the run at once with 75") {
  TempRun t;
  const std::string signal = GENERATE("TERM", "INT", "USR1");
  const auto begin = std::chrono::steady_clock::now();
  const Outcome o = t.shell_with_jobs(fmt::format(
      "LTRAIN_FAULT=train.step:1:3:kill {} run tiny.yaml launch.max_restarts=5 "
      "launch.restart_wait_seconds=60 "
      "2> err & p=$!\n"
      "for i in $(seq 600); do grep -q 'restart 1 of 5 in 60 s' err 2>/dev/null && break; sleep 0.05; done\n"
      "kill -{} $p; wait $p; code=$?; cat err; exit $code\n",
      program(), signal));
  INFO(o.text);
  CHECK(o.code == 75);
  CHECK_THAT(o.text, Contains("(SIG" + signal + ") before the restart") && Contains("exit code 75"));
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
        15 * ltrain::time_scale());
  const Outcome again = t.sh("run tiny.yaml");
  CHECK(again.code == 0);
}

TEST_CASE("launch.max_restarts is refused by name where another launcher starts the ranks") {
  TempRun t;
  const Outcome rank = t.sh("run tiny.yaml launch.max_restarts=3",
                            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                            "MASTER_PORT=29511");
  CHECK(rank.code == 64);
  CHECK_THAT(rank.text, Contains("launch.max_restarts = 3") && Contains("launch.max_restarts=0"));
  const Outcome slurm = t.sh("slurm tiny.yaml launch.max_restarts=3");
  CHECK(slurm.code == 64);
  CHECK_THAT(slurm.text, Contains("ranks that srun starts"));
}
