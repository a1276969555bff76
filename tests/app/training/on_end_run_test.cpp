// Files and commands for other programs: telemetry.prometheus and telemetry.on_end.
#include <catch2/catch.hpp>
#include <chrono>

#include "base/json/json.h"
#include "base/time_scale.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("telemetry: a run writes the Prometheus file and tells a command of its end") {
  TempRun t;
  const Outcome o = t.sh(
      "run tiny.yaml telemetry.prometheus=run.prom 'telemetry.on_end=cat > end.json' train.log_interval=4");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const std::string page = read_file(t.folder() + "/run.prom");
  CHECK_THAT(page, Contains("ltrain_iteration{run=\"tiny\"} 6\n") &&
                       Contains("ltrain_consumed_tokens_total{run=\"tiny\"} 1536\n") &&
                       Contains("ltrain_eval_loss_nats{run=\"tiny\"} "));
  const auto end = nlohmann::json::parse(read_file(t.folder() + "/end.json"));
  CHECK(
      (end["name"] == "tiny" && end["exit_code"] == 0 && end["output_dir"] == "run" && end["reason"] == ""));
  CHECK((end["first_step"] == 0 && end["saved_step"] == 6 && end["end_step"] == 6 && end["restarts"] == 0));
  CHECK(end["start_again"] == false);
}

TEST_CASE("telemetry: a failed run tells its command the verdict, once, after its last restart") {
  TempRun t;
  const Outcome o = t.sh(
      "run tiny.yaml 'telemetry.on_end=cat >> ends.json' launch.max_restarts=1 "
      "launch.restart_wait_seconds=0 checkpoint.save_interval=100",
      "LTRAIN_FAULT=train.step:1:3:kill");
  INFO(o.text);
  CHECK(o.code == 71);
  const auto end = nlohmann::json::parse(read_file(t.folder() + "/ends.json"));
  CHECK((end["exit_code"] == 71 && end["restarts"] == 1 && end["start_again"] == true));
  CHECK(end["saved_step"].is_null());
  CHECK_THAT(end["reason"].get<std::string>(), Contains("rank 1 on host") && Contains("signal 9 (SIGKILL)"));
}

TEST_CASE("telemetry: a command that fails or does not end is a warning and changes no exit code") {
  TempRun t;
  const Outcome fails = t.sh("run tiny.yaml --steps 1 'telemetry.on_end=echo no network >&2; exit 3'");
  INFO(fails.text);
  CHECK(fails.code == 0);
  CHECK_THAT(fails.text,
             Contains("warning: the command of telemetry.on_end ended with exit code 3: no network"));
  const auto begin = std::chrono::steady_clock::now();
  const Outcome hangs =
      t.sh("run tiny.yaml --steps 1 'telemetry.on_end=sleep 600' telemetry.on_end_seconds=0.5");
  INFO(hangs.text);
  CHECK(hangs.code == 0);
  CHECK_THAT(hangs.text, Contains("warning: the command of telemetry.on_end did not end in 0.5 s"));
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
        20 * ltrain::time_scale());
}
