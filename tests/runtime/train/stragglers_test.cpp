#include "runtime/train/stragglers.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "runtime/telemetry/run_report.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

using namespace ltrain;

namespace {

/// A rank that computes for `ms` a step.
RankTimes busy(int64_t ms, int64_t data_ms = 0) { return {1000 * ms, 1000 * data_ms, 1000 * (ms - data_ms)}; }

}  // namespace

TEST_CASE("stragglers: a rank far above the median is named with its reason, and no other one") {
  const auto found = find_stragglers({busy(10), busy(11), busy(50), busy(10)});
  REQUIRE(found.size() == 1);
  CHECK(found[0].rank == 2);
  CHECK(found[0].reason == "compute");
  CHECK(found[0].own_ms == Approx(50));
  CHECK(found[0].median_ms == Approx(10));

  const auto by_data = find_stragglers({busy(10), busy(45, 35), busy(10)});
  REQUIRE(by_data.size() == 1);
  CHECK(by_data[0].rank == 1);
  CHECK(by_data[0].reason == "data");
  CHECK(by_data[0].reason_ms == Approx(35));

  // 50 ms of wall time, 10 ms of which the process ran.
  const auto stopped = find_stragglers({busy(10), {50000, 0, 10000}});
  REQUIRE(stopped.size() == 1);
  CHECK(stopped[0].rank == 1);
  CHECK(stopped[0].reason == "stalled");
  CHECK(stopped[0].reason_ms == Approx(40));

  // A GPU's lower clock explains its time, by the reason that the driver gives.
  const auto clocked = [](double mhz, unsigned reasons) {
    GpuReading r;
    r.sm_clock_mhz = mhz, r.throttle_reasons = reasons, r.temperature_c = 91;
    return r;
  };
  const std::vector<RankTimes> times{{10000, 0, -1}, {10000, 0, -1}, {50000, 0, -1}};
  const auto with = [&](const GpuReading& last) {
    return find_stragglers(times, {clocked(1980, kPowerCap), clocked(1970, 0), last}).at(0);
  };
  CHECK(with(clocked(1200, kHardwareThermal | kHardwareSlowdown | kPowerCap)).reason == "temperature");
  CHECK(with(clocked(1200, kPowerCap)).reason == "power");
  CHECK(with(clocked(1200, 0)).reason == "clock");
  CHECK(with(clocked(1950, kHardwareThermal)).reason == "compute");  // the clock is as high as the others'
  CHECK(with(GpuReading()).reason == "compute");
  CHECK(
      straggler_text(with(clocked(1200, kSoftwareThermal))) ==
      "straggler: rank 2 on host : 50.0 ms a step of its own, the median of the ranks is 10.0 ms; its GPU is "
      "throttled by temperature: SM clock 1200 MHz, the median is 1970 MHz; 91 C");

  // On a GPU the processor's time says nothing.
  CHECK(find_stragglers({{10000, 0, -1}, {50000, 0, -1}}).at(0).reason == "compute");
}

TEST_CASE("stragglers: two slow ranks come slowest first") {
  const auto found = find_stragglers({busy(30), busy(10), busy(40), busy(10), busy(10)});
  REQUIRE(found.size() == 2);
  CHECK(found[0].rank == 2);
  CHECK(found[1].rank == 0);
}

TEST_CASE("stragglers: no rank is named where all are alike, where noise is short, or where there is one") {
  CHECK(find_stragglers({}).empty());
  CHECK(find_stragglers({busy(50)}).empty());
  CHECK(find_stragglers({busy(10), busy(14), busy(9), busy(10)}).empty());
  CHECK(find_stragglers({{100, 0, 100}, {1500, 0, 1500}}).empty());
  CHECK(find_stragglers({{0, 0, 0}, {0, 0, 0}}).empty());
}

TEST_CASE("stragglers: the GPU that is throttled by heat is named in the log, the metrics and the report") {
  const test::TemporaryFolder folder;
  std::vector<std::string> notes;
  bool compared = false;
  test::ThreadGroups groups;
  test::on_threads(3, [&](int rank) {
    GpuWatch gpu;
    gpu.start(
        [rank] {
          return [rank](std::vector<std::string>&) {
            GpuReading r;
            r.sm_clock_mhz = rank == 2 ? 1200 : 1980, r.throttle_reasons = rank == 2 ? 0x48 : 0x4;
            if (rank == 2) r.temperature_c = 91;
            return r;
          };
        },
        "a rank", 3600);
    gpu.begin_run();
    StragglerWatch watch(groups.take({"stragglers", kAllAxes, {0, 1, 2}}, rank), fmt::format("node{}", rank),
                         2, &gpu);
    for (int i = 0; i < 3; ++i) watch.step(rank == 2 ? 0.016 : 0.010, 0, 0);
    if (rank > 0) return;
    compared = watch.compared();
    notes = watch.notes();
    MetricsWriter metrics(folder.path(), false, 0);
    StepMetrics m;
    m.step = 2, m.gpu = gpu.newest();
    metrics.step(m);
    metrics.gpus(2, watch.gpus());
    metrics.stragglers(2, watch.found());
  });
  CHECK(compared);
  CHECK(notes ==
        std::vector<std::string>{
            "straggler: rank 2 on host node2: 16.0 ms a step of its own, the median of the ranks is 10.0 "
            "ms; its GPU is throttled by temperature: SM clock 1200 MHz, the median is 1980 MHz; 91 C"});
  std::stringstream text;
  text << std::ifstream(folder.path() + "/metrics.jsonl").rdbuf();
  CHECK_THAT(
      text.str(),
      Catch::Contains(R"({"gpus":{"host":["node0","node1","node2"],"sm_clock_mhz":[1980.0,1980.0,1200.0],)"
                      R"("temperature_c":[null,null,91.0],"throttle_reasons":[4.0,4.0,72.0]},"step":2})"));
  const RunReport report = read_run_report(folder.path());
  REQUIRE(report.events.size() == 1);
  CHECK(report.events[0].text == "rank 2 on host node2 holds up the others: temperature, 1200 MHz, 91 C");
  CHECK_THAT(report_text(report, {}), Catch::Contains("SM clock") && Catch::Contains("1980 MHz"));
}
