// The drawings of runs.
#include "planner/report/run_pictures.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "planner/report/expert_pictures.h"
#include "tests/support/occurrences.h"
#include "tests/support/run_of_losses.h"

using namespace ltrain;
using Catch::Contains;
using ltrain::test::occurrences;

namespace {

RunReport run(const std::string& path, const std::vector<double>& losses) {
  RunReport r = test::run_of_losses(path, losses);
  for (ReportStretch& s : r.stretches) {
    s.step_ms.add(10), s.data_ms.add(2);
    s.exposed_ms["dp"].add(3);
  }
  return r;
}

std::vector<std::string> names(const std::vector<Picture>& pictures) {
  std::vector<std::string> out;
  for (const Picture& p : pictures) out.push_back(p.name);
  return out;
}

}  // namespace

TEST_CASE("a drawing of runs has a line for each and their names, and none for losses that are not finite",
          "[telemetry]") {
  const auto lines = [](const std::string& svg) { return occurrences(svg, "stroke-width=\"1.6\""); };
  const std::string svg = loss_svg({run("runs/a", {4, 3, 2}), run("runs/<b>", {4, 3})});
  CHECK_THAT(svg,
             Contains("runs/a") && Contains("runs/&lt;b&gt;") && Contains("held-out loss 2.2500 at step 3"));
  CHECK(lines(svg) == 3);
  CHECK(lines(loss_svg({run("a", {4, NAN, 2})})) == 1);
  CHECK_NOTHROW(loss_svg({run("a", {2})}));
  CHECK_NOTHROW(loss_svg({run("a", {NAN})}));
}

TEST_CASE("the page of a run shows parts of a step, events and experts, where the run has them") {
  RunReport r = run("runs/a", {4, 3, 2});
  CHECK(names(run_pictures({r})) == std::vector<std::string>{"loss", "step"});
  const std::string parts = step_time_svg(r);
  CHECK(occurrences(parts, "data-part=\"own work\" data-ms=\"5\"") == 3);
  CHECK(occurrences(parts, "data-part=\"data\" data-ms=\"2\"") == 3);
  CHECK(occurrences(parts, "data-part=\"dp\" data-ms=\"3\"") == 3);

  r.events.push_back({2, "restart 1, 1 step is lost: rank <1> died"});
  CHECK_THAT(loss_svg({r}), Contains("rank &lt;1&gt; died"));
  CHECK_THAT(loss_svg({r, r}), !Contains("died"));  // several runs have lines only
  CHECK(run_lead(r).back() == "After step 2: restart 1, 1 step is lost: rank <1> died");

  for (ReportStretch& s : r.stretches) {
    s.layers.resize(2);  // the first one is dense
    s.layers[1].tokens = {3, 1};
    s.layers[1].entropy.add(s.last_step == 3 ? 0.25 : 1);
    s.layers[1].drop_rate.add(0.125);
    s.grad_norm.add(1), s.tokens_per_sec.add(1000), s.mem_peak_gib.add(1), s.mem_plan_gib.add(1.25);
  }
  CHECK(names(run_pictures({r})) ==
        std::vector<std::string>{"loss", "norm", "speed", "memory", "step", "experts", "load", "drops"});
  CHECK(names(run_pictures({r, r})) == std::vector<std::string>{"loss", "norm", "speed", "memory"});
  const std::string map = expert_map_svg(r);
  CHECK(occurrences(map, "data-layer=\"1\" data-evenness=\"1\"") == 2);
  CHECK(occurrences(map, "data-layer=\"1\" data-evenness=\"0.25\"") == 1);
  CHECK(occurrences(map, "data-layer=\"0\"") == 0);
  CHECK_THAT(map, Contains("layer 1, steps 3 to 3: evenness 0.250, drops 12.50 %"));
  const std::string drops = drop_map_svg(r);
  CHECK(occurrences(drops, "data-layer=\"1\" data-drops=\"0.125\"") == 3);
  CHECK(occurrences(drops, "data-layer=\"0\"") == 0);
  r.stretches[1].layers[1].churn.add(0.25);  // probes of one stretch
  CHECK(names(run_pictures({r})).back() == "churn");
  CHECK(occurrences(churn_map_svg(r), "data-churn=") == 1);
  CHECK_THAT(churn_map_svg(r), Contains("layer 1, steps 2 to 2: churn 0.250") &&
                                   Contains("fill=\"#d18181\"") && Contains("data-churn=\"0.25\""));
  const std::string load = load_map_svg(r, 1);
  CHECK(occurrences(load, "data-expert=\"0\" data-share=\"0.75\"") == 3);
  CHECK(occurrences(load, "data-expert=\"1\" data-share=\"0.25\"") == 3);
  CHECK(names(run_pictures({r}, 0)) ==  // a dense layer has no experts
        std::vector<std::string>{"loss", "norm", "speed", "memory", "step", "experts", "drops", "churn"});
  CHECK_THAT(run_lead(r)[1], Contains("1.000 GiB of 1.250 planned"));
}
