#include "runtime/telemetry/prometheus.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;

namespace {

StepMetrics step(int64_t n, double loss) {
  StepMetrics m;
  m.step = n, m.train_steps = 10, m.end_step = 7;
  m.lm_loss = loss, m.step_time_ms = 250, m.tokens_per_sec = 1000;
  m.exposed_comm_ms = {{"dp", 5}, {"tp", 2.5}};
  m.consumed_tokens = 256 * n, m.mem_peak_gib = 0.5;
  return m;
}

}  // namespace

TEST_CASE("prometheus: each line is a comment or a sample, with units in the names and escaped labels") {
  const std::string text =
      prometheus_text(step(3, 5.5), "a \"b\"\\\nc", 2, {{"", 4.5}, {"news", 4.25}}, 1800000000.25);
  const std::regex line(
      R"(# (HELP|TYPE) ltrain_[a-z_]+ .+|ltrain_[a-z_]+\{run="a \\"b\\"\\\\\\nc"(,(axis|set)="[a-z]*")?\} \S+)");
  std::istringstream in(text);
  for (std::string l; std::getline(in, l);) {
    INFO(l);
    CHECK(std::regex_match(l, line));
  }
  CHECK_THAT(text, Contains("ltrain_step_time_seconds{run=\"a \\\"b\\\"\\\\\\nc\"} 0.25\n"));
  CHECK_THAT(text, Contains(",axis=\"tp\"} 0.0025\n") && Contains(",set=\"news\"} 4.25\n"));
  CHECK_THAT(text, Contains("# TYPE ltrain_consumed_tokens_total counter\n") &&
                       Contains("ltrain_memory_peak_bytes{") && Contains("} 536870912\n"));
  GpuReading gpu;
  gpu.sm_clock_mhz = 1980, gpu.energy_j = 12.5;
  const std::string gpus = prometheus_text(step(3, 5.5), "r", 0, {}, 1, {}, {{0, "a", gpu}, {3, "b\"", gpu}});
  CHECK_THAT(gpus, Contains("# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
                            "DCGM_FI_DEV_SM_CLOCK{run=\"r\",rank=\"0\",Hostname=\"a\"} 1980\n"
                            "DCGM_FI_DEV_SM_CLOCK{run=\"r\",rank=\"3\",Hostname=\"b\\\"\"} 1980\n"));
  CHECK_THAT(gpus,
             Contains("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{run=\"r\",rank=\"0\",Hostname=\"a\"} 12500\n") &&
                 !Contains("ECC"));
  StepMetrics odd = step(1, NAN);
  odd.grad_norm = INFINITY, odd.mfu = NAN;
  const std::string other = prometheus_text(odd, "r", 0, {}, 1);
  CHECK_THAT(other, Contains("ltrain_lm_loss_nats{run=\"r\"} NaN\n") &&
                        Contains("ltrain_grad_norm{run=\"r\"} +Inf\n") && !Contains("mfu") &&
                        !Contains("eval"));
}

TEST_CASE("prometheus: the file has the means of each interval, and its last state at the end") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/run.prom";
  PrometheusText file({.path = path, .run = "r", .log_interval = 2, .restarts = 0});
  file.step(step(1, 4));
  CHECK(!std::filesystem::exists(path));
  file.step(step(2, 6));
  CHECK_THAT(test::read_file(path),
             Contains("ltrain_lm_loss_nats{run=\"r\"} 5\n") && Contains("ltrain_iteration{run=\"r\"} 2\n"));
  file.step(step(3, 8));
  CHECK_THAT(test::read_file(path), Contains("ltrain_iteration{run=\"r\"} 2\n"));
  file.eval("", 3.5);
  file.finish();
  CHECK_THAT(test::read_file(path), Contains("ltrain_iteration{run=\"r\"} 3\n") &&
                                        Contains("ltrain_lm_loss_nats{run=\"r\"} 8\n") &&
                                        Contains("ltrain_eval_loss_nats{run=\"r\"} 3.5\n"));
  CHECK(!std::filesystem::exists(path + ".tmp"));
  CHECK(file.notes().empty());
}

TEST_CASE("prometheus: a file that cannot be written is one warning, and training goes on") {
  const test::TemporaryFolder folder;
  PrometheusText file({.path = folder.path() + "/no/run.prom", .run = "r", .log_interval = 1, .restarts = 0});
  file.step(step(1, 4));
  file.step(step(2, 4));
  const std::vector<std::string> notes = file.notes();
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("warning: telemetry.prometheus: ") && Contains("/no/run.prom"));
  std::filesystem::create_directories(folder.path() + "/no");
  file.step(step(3, 4));
  CHECK_THAT(file.notes().at(0), Contains("is written again"));
}

TEST_CASE("prometheus: a port that is taken is one warning, and training goes on") {
  const MetricsServer other(0);
  PrometheusText page({.port = other.port(), .run = "r"});
  page.step(step(1, 4));
  page.finish();
  const std::vector<std::string> notes = page.notes();
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("warning: telemetry.prometheus_port = ") &&
                           Contains("Address already in use") && Contains("training goes on"));
}
