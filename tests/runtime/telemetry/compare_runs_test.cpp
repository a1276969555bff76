// Runs beside each other.
#include "runtime/telemetry/compare_runs.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/run_of_losses.h"

using namespace ltrain;
using Catch::Contains;

namespace {

RunReport run(const std::string& path, const std::vector<double>& losses) {
  RunReport r = test::run_of_losses(path, losses);
  for (ReportStretch& s : r.stretches) s.tokens_per_sec.add(1000 * s.loss.value());
  return r;
}

}  // namespace

TEST_CASE("runs are compared at steps that all have", "[telemetry]") {
  const std::vector<RunReport> runs{run("runs/a", {4, 3, 2, 1.5}), run("runs/b", {4.5, 3.5})};
  const std::string text = comparison_text(runs);
  INFO(text);
  CHECK_THAT(text, Contains("runs/a") && Contains("runs/b") && Contains("loss at the same steps"));
  CHECK_THAT(text, Contains("         2            3.0000            3.5000\n"));
  CHECK_THAT(text, !Contains("\n         4  "));               // only in the first run
  CHECK_THAT(text, Contains("1.7500") && Contains("3.7500"));  // held out
  std::vector<RunReport> apart{run("a", {1, 2}), run("b", {1, 2})};
  apart[1].first_step = 10, apart[1].last_step = 11;
  CHECK_THAT(comparison_text(apart), Contains("no step in common"));
}

TEST_CASE("a comparison as CSV has every stretch of every run, quoted where it must be", "[telemetry]") {
  const std::string csv = comparison_csv({run("a,b", {4, 3}), run("c", {2})});
  CHECK(csv ==
        "run,first_step,last_step,loss,grad_norm,tokens_per_sec,mfu\n"
        "\"a,b\",1,1,4,,4000,\n"
        "\"a,b\",2,2,3,,3000,\n"
        "c,1,1,2,,2000,\n");
}
